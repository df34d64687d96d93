"""Synthetic requests of Arlo's evaluation: a rate per second, an arrival pattern within it, and drifting lengths.

With a fixed length distribution, periodic reallocation would have no effect (Arlo Table 3, Figure 12). Here the lengths
drift over minutes by a common factor whose logarithm is an Ornstein-Uhlenbeck process.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tidal.errors import InvalidArgument
from tidal.simulator.requests import Floats, RequestsInSecond, RequestSource

#: Lengths of tweets in tokens by percentile (92,403 public English tweets), cut at the 125 tokens that the paper names.
TWEETS = "0=3,5=9,25=17,50=24,75=30,95=50,98=64,99=71,100=125"


@dataclass(frozen=True, slots=True)
class LengthHistory:
    """Past requests by length in tokens, and the time over which they were counted in seconds."""

    by_length: Mapping[int, float]
    seconds: float


def length_history(requests: RequestSource, first_s: float = math.inf) -> LengthHistory:
    """Count the requests of the first `first_s` seconds by length; by default all."""
    counts = np.zeros(requests.longest + 1, np.int64)
    for second in itertools.islice(requests, None if first_s == math.inf else math.ceil(first_s)):
        counts += np.bincount(second.lengths, minlength=requests.longest + 1)
    by_length = {int(length): float(counts[length]) for length in np.flatnonzero(counts)}
    return LengthHistory(
        by_length, float(min(math.ceil(first_s), requests.seconds) if first_s < math.inf else requests.seconds)
    )


@dataclass(frozen=True, slots=True)
class Bursts:
    """Two-state Markov modulation of the rate with mean 1 ("Bursty").

    The paper names the process without parameters; the defaults are assumptions.

    Args:
        factor: Rate within a burst relative to the mean rate, from 1 to 1 / `share`.
        mean_s: Mean duration of a burst in seconds; bursts and lulls are exponentially distributed.
        share: Share of the time that is bursts, between 0 and 1.
    """

    factor: float = 1.5
    mean_s: float = 0.2
    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise InvalidArgument(f"burst share must be between 0 and 1, got {self.share:g}")
        if not 1 <= self.factor <= 1 / self.share:
            raise InvalidArgument(
                f"burst factor must be between 1 and 1 / share = {1 / self.share:g}, got {self.factor:g}"
            )
        _positive("mean duration of a burst", self.mean_s)


@dataclass(frozen=True)
class SyntheticRequests:
    """Synthetic requests; every iteration yields the same ones.

    Args:
        rates: Requests per second, for each second.
        lengths: Possible lengths in tokens.
        weights: Relative frequency of each length.
        longest: Maximum length in tokens; longer requests are truncated to it.
        bursts: Modulation of the rate; None: a Poisson process within each second ("Stable").
        drift: Standard deviation of the logarithm of the drifting length factor; 0: no drift.
        drift_s: Correlation time of the drift, in seconds.
        seed: Seed; equal seeds give equal requests.

    Raises:
        InvalidArgument: An input is out of range.
    """

    rates: Sequence[float]
    lengths: Sequence[int]
    weights: Sequence[float]
    longest: int = 512
    bursts: Bursts | None = None
    drift: float = 0.0
    drift_s: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not len(self.rates) or not all(0 <= rate < math.inf for rate in self.rates):
            raise InvalidArgument("rates must be one or more finite numbers of requests per second of at least 0")
        if not len(self.lengths) or len(self.lengths) != len(self.weights) or min(self.lengths) < 1:
            raise InvalidArgument("lengths must be one or more numbers of tokens of at least 1, each with a weight")
        if min(self.weights) < 0 or not 0 < sum(self.weights) < math.inf:
            raise InvalidArgument("weights must be at least 0 and their sum above 0")
        if self.longest < 1:
            raise InvalidArgument(f"longest must be at least 1 token, got {self.longest}")
        if not 0 <= self.drift < math.inf:
            raise InvalidArgument(f"drift must be at least 0, got {self.drift:g}")
        _positive("drift_s", self.drift_s)

    @property
    def seconds(self) -> int:
        """Duration of the arrivals in whole seconds."""
        return len(self.rates)

    @property
    def mean_rate(self) -> float:
        """Mean requests per second."""
        return float(np.mean(self.rates))

    def __iter__(self) -> Iterator[RequestsInSecond]:
        arrivals, mixes = (np.random.default_rng([self.seed, stream]) for stream in (1, 2))
        moments, expected = self._expected
        values = np.asarray(self.lengths, np.float64)
        upto = np.cumsum(np.asarray(self.weights, np.float64))
        edges = np.interp(np.arange(self.seconds + 1), moments, expected)
        for second, scale in enumerate(self.scales):
            low, high = edges[second], edges[second + 1]
            number = int(arrivals.poisson(high - low))
            times = np.interp(np.sort(arrivals.uniform(low, high, number)), expected, moments)
            drawn = values[np.searchsorted(upto, mixes.random(number) * upto[-1], side="right")]
            lengths = np.clip(np.ceil(drawn * scale), 1, self.longest).astype(np.int64)
            yield RequestsInSecond(float(second), times, lengths)

    @cached_property
    def scales(self) -> Floats:
        """Length factor of the drift by second, float64 [seconds]."""
        rng = np.random.default_rng([self.seed, 3])
        keep = math.exp(-1.0 / self.drift_s)
        steps = rng.normal(0.0, self.drift, self.seconds)
        steps[1:] *= math.sqrt(1 - keep * keep)
        logs = np.empty(self.seconds)
        log = 0.0
        for second, step in enumerate(steps):
            log = keep * log + step
            logs[second] = log
        return np.exp(logs)

    @cached_property
    def _expected(self) -> tuple[Floats, Floats]:
        """Times and the expected number of requests up to each, piecewise linear and strictly ascending."""
        marks = np.arange(self.seconds + 1, dtype=np.float64)
        rates = np.maximum(np.asarray(self.rates, np.float64), 1e-9)  # an epsilon keeps it invertible
        if self.bursts is None:
            return marks, np.concatenate([[0.0], np.cumsum(rates)])
        switches, factors = self._modulation(self.bursts)
        moments = np.union1d(marks, switches[(switches > 0) & (switches < self.seconds)])
        middles = (moments[:-1] + moments[1:]) / 2
        now = np.maximum(factors[np.searchsorted(switches, middles, side="right") - 1], 1e-9)
        pieces = rates[middles.astype(np.int64)] * now * np.diff(moments)
        return moments, np.concatenate([[0.0], np.cumsum(pieces)])

    def _modulation(self, bursts: Bursts) -> tuple[Floats, Floats]:
        """Start times of alternating bursts and lulls, and the rate factor from each on."""
        rng = np.random.default_rng([self.seed, 4])
        lull_s = bursts.mean_s * (1 - bursts.share) / bursts.share
        pairs = int(self.seconds / (bursts.mean_s + lull_s) * 1.5) + 100
        in_burst = bool(rng.random() < bursts.share)
        means = np.tile([bursts.mean_s, lull_s] if in_burst else [lull_s, bursts.mean_s], pairs)
        lasts = rng.exponential(means)
        while lasts.sum() < self.seconds:
            lasts = np.concatenate([lasts, rng.exponential(means)])
        slow = (1 - bursts.share * bursts.factor) / (1 - bursts.share)
        factors = np.resize([bursts.factor, slow] if in_burst else [slow, bursts.factor], len(lasts))
        return np.concatenate([[0.0], np.cumsum(lasts)[:-1]]), factors


def scaled_lengths(lengths: Sequence[int], longest_then: int, longest_now: int) -> list[int]:
    """Scale lengths so that `longest_then` tokens become `longest_now` (Arlo §5: 125 tokens of a tweet become 512).

    Args:
        lengths: Lengths in tokens.
        longest_then: Length to scale from, in tokens.
        longest_now: Length to scale to, in tokens.
    """
    if longest_then < 1 or longest_now < 1:
        raise InvalidArgument(f"lengths must be scaled from and to at least 1 token, got {longest_then}, {longest_now}")
    return [math.ceil(length * longest_now / longest_then) for length in lengths]


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InvalidArgument(f"{name} must be a positive, finite number of seconds, got {value:g}")
