"""Query texts of given token lengths, all different, so that no cache can help."""

from __future__ import annotations

import csv
import itertools
import random
from pathlib import Path

from tokenizers import Tokenizer

# Percentiles of the token lengths of public tweets (all-MiniLM-L6-v2 tokenizer), used without --data.
_TWEET_PERCENTILES = ((0, 3), (5, 9), (25, 17), (50, 24), (75, 30), (95, 50), (98, 64), (99, 71), (100, 128))


class TextMaker:
    """Generates texts of an exact number of tokens from whole words of the vocabulary.

    Args:
        tokenizer_file: File of the tokenizer.
        seed: Seed of the random choice of words.
    """

    def __init__(self, tokenizer_file: Path, seed: int) -> None:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._special = len(tokenizer.encode("").ids)
        vocabulary = (word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha() and len(word) > 2)
        self._words = sorted(word for word in vocabulary if len(tokenizer.encode(word).ids) == self._special + 1)
        self._random = random.Random(seed)

    def text(self, tokens: int) -> str:
        """Return a new text of at least one word.

        Args:
            tokens: Number of tokens, special tokens included.
        """
        return " ".join(self._random.choices(self._words, k=max(1, tokens - self._special)))


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
    drawn = []
    for _ in range(count):
        at = rng.uniform(0, 100)
        (p0, n0), (p1, n1) = next((a, b) for a, b in itertools.pairwise(_TWEET_PERCENTILES) if at <= b[0])
        drawn.append(round(n0 + (n1 - n0) * (at - p0) / (p1 - p0)))
    return drawn, "lengths drawn from the percentiles of tweets (no --data)"
