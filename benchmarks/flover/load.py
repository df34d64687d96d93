"""Loads: arrival time, prompt and number of tokens of each request."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

#: Number of tokens of every prompt: the paper evaluates generation.
PROMPT = 32


@dataclass(frozen=True, slots=True)
class FloverLoad:
    """Requests, the first at 0 seconds.

    Attributes:
        name: Name in tables.
        times: Arrival time of each request in seconds.
        prompts: Token ids of each prompt.
        wanted: Number of tokens to generate for each.
    """

    name: str
    times: tuple[float, ...]
    prompts: tuple[tuple[int, ...], ...]
    wanted: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True, slots=True)
class FloverLoadGenerator:
    """Generates loads for one decoder; equal seeds give equal loads.

    Attributes:
        vocabulary: Size of the vocabulary; token ids are below it.
        prompt: Number of tokens of a prompt.
    """

    vocabulary: int
    prompt: int = PROMPT

    def make(self, name: str, times: Sequence[float], wanted: Sequence[int], seed: int) -> FloverLoad:
        """Return a load of new random prompts."""
        draw = np.random.default_rng([seed, 2])
        prompts = draw.integers(0, self.vocabulary, (len(times), self.prompt)).tolist()
        return FloverLoad(name, tuple(times), tuple(map(tuple, prompts)), tuple(wanted))


def at_once(count: int) -> list[float]:
    """Arrival times of simultaneous requests."""
    return [0.0] * count


def constant(count: int, gap_s: float) -> list[float]:
    """Arrival times with equal gaps."""
    return [gap_s * number for number in range(count)]


def poisson(count: int, gap_s: float, seed: int) -> list[float]:
    """Arrival times with exponential gaps of a given mean (λ in §VI-C), scaled so that rounds take the same time."""
    gaps = np.random.default_rng([seed, 0]).exponential(1.0, count - 1)
    return [0.0, *(gaps.cumsum() * gap_s * (count - 1) / gaps.sum()).tolist()]


def equal(count: int, tokens: int) -> list[int]:
    """The same number of tokens for every request."""
    return [tokens] * count


def uniform(count: int, low: int, high: int, seed: int) -> list[int]:
    """Numbers of tokens drawn from U(low, high), both included (§VI-D)."""
    return [int(tokens) for tokens in np.random.default_rng([seed, 1]).integers(low, high + 1, count)]


def recorded(count: int, most: int, seed: int, data: Path) -> list[int]:
    """Recorded numbers of tokens of a public service, at most `most`, from `azure_llm_2023/conv.csv.gz`."""
    with gzip.open(data / "azure_llm_2023" / "conv.csv.gz", "rt") as rows:
        lengths = [int(row["GeneratedTokens"]) for row in csv.DictReader(rows)]
    return [min(most, max(2, n)) for n in np.random.default_rng([seed, 3]).choice(lengths, count).tolist()]
