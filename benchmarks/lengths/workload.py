"""Distributions of lengths: of tweets, of documents, and even."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from benchmarks.encoders.workload import read_lengths
from benchmarks.texts import TextMaker, draw_lengths, tweet_lengths
from tidal_builders.arlo.length_distribution import LengthDistribution

#: Longest input in tokens.
LONGEST = 512
NAMES = ("tweets", "even", "documents")


@dataclass(frozen=True, slots=True)
class LengthsWorkload:
    """Lengths of texts.

    Attributes:
        tokenizer: File of the tokenizer.
        data: Folder with `tweet_lengths` and `xquad`; None draws lengths from their percentiles.
    """

    tokenizer: Path
    data: Path | None

    def lengths(self, name: str, count: int, seed: int) -> list[int]:
        """Draw lengths in tokens; equal seeds give equal lengths.

        Args:
            name: One of `NAMES`.
            count: Number of lengths.
            seed: Seed.
        """
        rng = random.Random(seed)
        if name == "even":
            found = [rng.randint(3, LONGEST) for _ in range(count)]
        elif name == "tweets":
            found, _ = tweet_lengths(count, seed, self.data)
        else:
            known, _ = read_lengths(self.tokenizer, self.data)
            found = rng.choices(known, k=count) if isinstance(known, list) else draw_lengths(known, count, rng)
        return [min(each, LONGEST) for each in found]

    def distribution(self, name: str, seed: int) -> LengthDistribution:
        """Return the distribution of many drawn lengths."""
        return LengthDistribution.of_lengths(self.lengths(name, 20_000, seed), LONGEST)

    def write_texts(self, name: str, file: Path, seed: int) -> None:
        """Write texts with drawn lengths, one per line."""
        maker = TextMaker(self.tokenizer, seed)
        texts = [maker.text(length) for length in self.lengths(name, 2_000, seed)]
        file.write_text("\n".join(texts) + "\n", encoding="utf-8")
