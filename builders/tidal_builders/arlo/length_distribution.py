"""Distributions of the texts' lengths, which runtimes, forms and precisions are chosen for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument

Floats = npt.NDArray[np.float64]

Named = Literal["short", "even"]
#: Percentiles of the lengths of 92,403 public tweets in tokens of all-MiniLM-L6-v2, special ones included.
SHORT_TEXTS = ((0, 3), (5, 9), (25, 17), (50, 24), (75, 30), (95, 50), (98, 64), (99, 71), (100, 128))


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """How often texts of each length come.

    Attributes:
        shares: Share of the texts with each length from 1 to the longest input, [tokens]; they sum to 1.
    """

    shares: Floats

    @classmethod
    def even(cls, max_length: int) -> LengthDistribution:
        """Uniform distribution over all lengths.

        Args:
            max_length: Longest input in tokens.
        """
        return cls(np.full(max_length, 1 / max_length))

    @classmethod
    def short(cls, max_length: int) -> LengthDistribution:
        """Lengths of short messages, see `SHORT_TEXTS`; longer ones than the longest input count as that.

        Args:
            max_length: Longest input in tokens.
        """
        percents, lengths = zip(*SHORT_TEXTS, strict=True)
        below = np.interp(np.arange(max_length + 1), lengths, percents) / 100
        below[-1] = 1.0
        return cls(np.diff(below))

    @classmethod
    def of_lengths(cls, lengths: Sequence[int], max_length: int) -> LengthDistribution:
        """The lengths of known texts; longer ones than the longest input count as that.

        Args:
            lengths: Lengths in tokens, at least one.
            max_length: Longest input in tokens.
        """
        counts = np.bincount(np.clip(lengths, 1, max_length), minlength=max_length + 1)[1:]
        return cls(counts / counts.sum())

    @classmethod
    def of_histogram(cls, upto: Sequence[int], counts: Sequence[float], max_length: int) -> LengthDistribution:
        """Lengths that are known by ranges; within a range all come equally often.

        Args:
            upto: Upper bounds of the ranges in tokens, ascending; longer ones than the longest input count as that.
            counts: Number of texts in each range, not all 0.
            max_length: Longest input in tokens.
        """
        below = np.interp(np.arange(max_length + 1), [0, *upto], np.concatenate([[0.0], np.cumsum(counts)]))
        below[-1] = sum(counts)
        return cls(np.diff(below) / sum(counts))

    def within(self, grid: Sequence[int]) -> Floats:
        """Share of the texts above each grid point's predecessor and up to it, [points].

        Args:
            grid: Ascending lengths in tokens; the last is the longest input.
        """
        return np.diff(np.concatenate([[0.0], self.shares.cumsum()])[[0, *grid]])

    def grid(self, step: int, most: int | None = None) -> list[int]:
        """Return lengths at which latencies are measured: every multiple of `step`, or the `most` that matter most.

        Of these, half divide the texts evenly and half the lengths.

        Args:
            step: Distance of two lengths in tokens.
            most: Maximum number of lengths, at least 2; None for all.

        Returns:
            Ascending lengths; the last is the longest input.
        """
        longest = len(self.shares)
        every = [*range(step, longest, step), longest]
        if most is None or len(every) <= most:
            return every
        below, half = self.shares.cumsum(), most // 2
        parts = np.arange(1, half + 1) / half
        texts = np.searchsorted(below / below[-1], parts * (1 - 1e-12)) + 1
        return sorted({every[np.searchsorted(every, length)] for length in (*texts, *(parts * longest), longest)})

    def spread(self, count: int, seed: int = 0) -> list[int]:
        """Draw lengths, one from each of `count` equal shares of the distribution, ascending.

        Args:
            count: Number of lengths.
            seed: Seed of the random numbers.
        """
        at = (np.arange(count) + np.random.default_rng(seed).random(count)) / count
        below = self.shares.cumsum()
        return [int(length) for length in np.searchsorted(below / below[-1], at) + 1]


def lengths_of_texts(file: Path, field: str, tokenizer: Path, *, pairs: bool) -> list[int]:
    """Count the tokens of the texts of a file, special tokens included.

    Args:
        file: Text file, one text per line.
        field: Field of the spec that names the file.
        tokenizer: File of the tokenizer.
        pairs: Whether queries are pairs of texts: each line is then paired with the next.

    Raises:
        InvalidArgument: The file contains no text.
    """
    from tokenizers import Tokenizer

    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise InvalidArgument(f"field '{field}': {file} contains no text; expected one text per line")
    encode = Tokenizer.from_file(str(tokenizer)).encode_batch_fast
    queries = list(zip(lines, [*lines[1:], lines[0]], strict=True)) if pairs else lines
    return [len(each.ids) for each in encode(queries)]
