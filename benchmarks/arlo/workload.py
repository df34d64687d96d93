"""The workload: texts with the lengths of tweets scaled to at most 512 tokens, and their arrival times."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from benchmarks.texts import TextMaker, tweet_lengths
from tidal_client.load import Schedule, Times, bursty, poisson, text_inputs

Pattern = Literal["poisson", "bursty"]
LONGEST = 512
# The longest tweets have about 125 tokens; the paper recalibrates them to inputs of up to 512 (§5, "Workloads").
_LONGEST_TWEET = 125
# Markov-modulated arrivals: bursts of twice the mean rate take a fifth of the time and a second each, on average.
BURSTS = {"burst_factor": 2.0, "burst_s": 1.0, "burst_share": 0.2}


class ArloWorkload:
    """Generator of texts that are all different, so that no cache can help."""

    def __init__(self, tokenizer_file: Path, data: Path | None) -> None:
        self._maker = TextMaker(tokenizer_file, seed=3)
        self._data = data
        self.origin = f"{tweet_lengths(1, 0, data)[1]}, times {LONGEST}/{_LONGEST_TWEET}, at most {LONGEST}"

    def lengths(self, count: int, seed: int) -> list[int]:
        """Return `count` lengths in tokens; equal seeds give equal lengths."""
        tweets, _ = tweet_lengths(count, seed, self._data)
        return [min(LONGEST, round(tokens * LONGEST / _LONGEST_TWEET)) for tokens in tweets]

    def texts(self, count: int, seed: int) -> list[str]:
        """Return `count` new texts with the lengths of the seed."""
        return [self._maker.text(tokens) for tokens in self.lengths(count, seed)]

    def trace(self, pattern: Pattern, rate: float, count: int, seed: int) -> Schedule:
        """Return `count` requests at `rate` per second on average; equal seeds give equal lengths and times."""
        return Schedule(arrivals(pattern, rate, count, seed), text_inputs(self.texts(count, seed)))


def arrivals(pattern: Pattern, rate: float, count: int, seed: int) -> Times:
    """Return the times of `count` requests at `rate` per second on average."""
    if pattern == "poisson":
        return poisson(rate, count=count, seed=seed)
    return bursty(rate, **BURSTS, count=count, seed=seed)
