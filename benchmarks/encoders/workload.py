"""Texts and pairs of texts with the lengths of tweets and of documents, all different, so that no cache can help."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from benchmarks.encoders.source import LONGEST, Task
from benchmarks.texts import TextMaker, draw_lengths, tweet_lengths

Lengths = Literal["tweets", "documents"]
#: A text to embed, or a query with a document.
Row = str | tuple[str, str]
#: Rows of a request.
Rows = Sequence[Row]
# Percentiles of the token lengths of XQuAD's English paragraphs and questions, used without --data.
_PARAGRAPHS = ((0, 36), (5, 98), (25, 123), (50, 148), (75, 187), (95, 268), (98, 344), (99, 350), (100, 507))
_QUESTIONS = ((0, 7), (5, 9), (25, 12), (50, 14), (75, 17), (95, 22), (99, 25), (100, 31))
# Special tokens of a text, and of a pair.
_SPECIAL, _SPECIAL_PAIR = 2, 3


@dataclass(frozen=True, slots=True)
class Traffic:
    """Kind of the requests.

    Attributes:
        task: Task of the requests.
        lengths: Source of the lengths of texts and documents.
        rows: Number of texts of a request, or of documents of a query.
    """

    task: Task
    lengths: Lengths
    rows: int = 1

    @property
    def name(self) -> str:
        """Name in tables and files."""
        return f"{self.task}, {self.lengths}" + (f" x {self.rows}" if self.rows > 1 else "")


class Workload:
    """Generator of requests.

    Args:
        tokenizer_file: File of the tokenizer of both models.
        data: Folder with `tweet_lengths` and `xquad`; None draws lengths from their percentiles.
    """

    def __init__(self, tokenizer_file: Path, data: Path | None) -> None:
        self._tokenizer_file, self._data = tokenizer_file, data
        self._paragraphs, self._questions = read_lengths(tokenizer_file, data)

    def requests(self, traffic: Traffic, count: int, seed: int) -> list[Rows]:
        """Return requests; equal seeds give equal requests.

        Args:
            traffic: Kind of the requests.
            count: Number of requests.
            seed: Seed of texts and lengths.
        """
        maker, rng = TextMaker(self._tokenizer_file, seed), random.Random(seed)
        lengths = self._lengths(traffic.lengths, count * traffic.rows, seed, rng)
        if traffic.task == "embed":
            rows: list[Row] = [maker.text(each) for each in lengths]
            return [rows[at : at + traffic.rows] for at in range(0, len(rows), traffic.rows)]
        found: list[Rows] = []
        for at in range(0, len(lengths), traffic.rows):
            asked = self._question(rng)
            query = maker.text(asked)
            # A pair is as long as its two texts, without the special tokens of the second.
            most = LONGEST - (asked - _SPECIAL) - _SPECIAL_PAIR + _SPECIAL
            found.append([(query, maker.text(min(each, most))) for each in lengths[at : at + traffic.rows]])
        return found

    def origin(self, lengths: Lengths) -> str:
        """Return where lengths are from, in words."""
        if lengths == "tweets":
            return tweet_lengths(1, 0, self._data)[1]
        found = "lengths of XQuAD's English paragraphs and questions"
        return found if isinstance(self._paragraphs, list) else f"{found}, drawn from their percentiles (no --data)"

    def _lengths(self, lengths: Lengths, count: int, seed: int, rng: random.Random) -> list[int]:
        if lengths == "tweets":
            found, _ = tweet_lengths(count, seed, self._data)
        elif isinstance(self._paragraphs, list):
            found = rng.choices(self._paragraphs, k=count)
        else:
            found = draw_lengths(self._paragraphs, count, rng)
        return [min(each, LONGEST) for each in found]

    def _question(self, rng: random.Random) -> int:
        if isinstance(self._questions, list):
            return rng.choice(self._questions)
        return draw_lengths(self._questions, 1, rng)[0]


# Measured lengths, or percentiles.
_Known = list[int] | tuple[tuple[int, int], ...]


def read_lengths(tokenizer_file: Path, data: Path | None) -> tuple[_Known, _Known]:
    """Return the token lengths of paragraphs and of questions, special tokens included; without data, percentiles.

    Args:
        tokenizer_file: File of the tokenizer.
        data: Folder with `xquad`.
    """
    file = None if data is None else data / "xquad" / "en.json.gz"
    if file is None or not file.exists():
        return _PARAGRAPHS, _QUESTIONS
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        articles = json.load(stream)["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    questions = [question["question"] for paragraph in paragraphs for question in paragraph["qas"]]
    contexts = [paragraph["context"] for paragraph in paragraphs]
    return tuple([len(each.ids) for each in tokenizer.encode_batch(texts)] for texts in (contexts, questions))  # type: ignore[return-value]
