"""Query texts of given token lengths, all different, so that no cache can help."""

from __future__ import annotations

import csv
import functools
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from tidal_builders.arlo.length_distribution import SHORT_TEXTS


class TextMaker:
    """Generates texts of an exact number of tokens from whole words of the vocabulary.

    Args:
        tokenizer_file: File of the tokenizer.
        seed: Seed of the random choice of words.
    """

    def __init__(self, tokenizer_file: Path, seed: int) -> None:
        self._special, self._words = _words_of(tokenizer_file)
        self._random = random.Random(seed)

    def text(self, tokens: int) -> str:
        """Return a new text of at least one word.

        Args:
            tokens: Number of tokens, special tokens included.
        """
        return " ".join(self._random.choices(self._words, k=max(1, tokens - self._special)))


@functools.lru_cache(maxsize=8)
def _words_of(tokenizer_file: Path) -> tuple[int, list[str]]:
    """Return the number of special tokens of a text, and the words of the vocabulary that are one token each."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()  # files of sentence-transformers pad each text to a fixed length
    special = len(tokenizer.encode("").ids)
    vocabulary = (word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha() and len(word) > 2)
    return special, sorted(word for word in vocabulary if len(tokenizer.encode(word).ids) == special + 1)


def tweet_lengths(count: int, seed: int, data: Path | None) -> tuple[list[int], str]:
    """Return token lengths of tweets, with a description of their source.

    Args:
        count: Number of lengths.
        seed: Seed; equal seeds give equal lengths.
        data: Folder with `tweet_lengths/lengths.csv` (columns tokens, count); None draws from its percentiles.
    """
    rng = random.Random(seed)
    file = None if data is None else data / "tweet_lengths" / "lengths.csv"
    if file is not None and file.exists():
        with file.open() as rows:
            table = [(int(row["tokens"]), int(row["count"])) for row in csv.DictReader(rows)]
        lengths = rng.choices([n for n, _ in table], weights=[c for _, c in table], k=count)
        return lengths, "token lengths of 92,403 public tweets"
    return draw_lengths(SHORT_TEXTS, count, rng), "lengths drawn from the percentiles of tweets (no --data)"


def draw_lengths(percentiles: Sequence[tuple[int, int]], count: int, rng: random.Random) -> list[int]:
    """Draw token lengths from a distribution of which percentiles are known, linearly between them.

    Args:
        percentiles: Percentiles from 0 to 100, each with its length.
        count: Number of lengths.
        rng: Source of randomness.
    """
    drawn = []
    for _ in range(count):
        at = rng.uniform(0, 100)
        (p0, n0), (p1, n1) = next((a, b) for a, b in itertools.pairwise(percentiles) if at <= b[0])
        drawn.append(round(n0 + (n1 - n0) * (at - p0) / (p1 - p0)))
    return drawn
