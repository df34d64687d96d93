"""Queries of a few types at a rate that changes every second."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tidal.errors import InvalidArgument
from tidal.otas.policies import Query


@dataclass(frozen=True, slots=True)
class QueryType:
    """A type of query (OTAS, Table II)."""

    task: str
    latency_s: float
    utility: float


@dataclass(frozen=True)
class QueryTrace:
    """A Poisson process with a rate per second and random query types; every iteration yields the same queries.

    Args:
        rates: Queries per second, for each second.
        types: Types of queries, equally frequent.
        seed: Seed; equal seeds give equal queries.

    Raises:
        InvalidArgument: A rate is below 0 or not finite, or there are no rates or no types.
    """

    rates: Sequence[float]
    types: Sequence[QueryType]
    seed: int = 0

    def __post_init__(self) -> None:
        if not len(self.rates) or not all(0 <= rate < math.inf for rate in self.rates):
            raise InvalidArgument("rates must be one or more finite numbers of queries per second of at least 0")
        if not len(self.types):
            raise InvalidArgument("types must not be empty")

    def __iter__(self) -> Iterator[Query]:
        """Yield new query objects in the order of arrival."""
        rng = np.random.default_rng(self.seed)
        for second, rate in enumerate(self.rates):
            number = int(rng.poisson(rate))
            times = np.sort(rng.uniform(second, second + 1, number)).tolist()
            for arrival, which in zip(times, rng.integers(len(self.types), size=number).tolist(), strict=True):
                kind = self.types[which]
                yield Query(kind.task, arrival, arrival + kind.latency_s, kind.utility)


def fluctuating(
    seconds: int, low: float, high: float, mean: float, *, held_s: float = 3.0, seed: int = 0
) -> list[float]:
    """Rates by second that jump within bounds: each is held for a while, geometrically distributed.

    The distribution between the bounds is a beta distribution of that mean with parameters that add up to 3, so that
    rates near either bound occur; the drawn rates are then moved so that their own mean is exact.

    Args:
        seconds: Number of seconds to generate.
        low: Lower bound of the rates in queries per second.
        high: Upper bound of the rates in queries per second.
        mean: Mean of the rates in queries per second, between the bounds.
        held_s: Mean duration of one rate in seconds, at least 1.
        seed: Seed of the random numbers; equal seeds give equal rates.

    Raises:
        InvalidArgument: The mean does not lie between the bounds, or `held_s` is below 1.
    """
    if not 0 <= low < mean < high < math.inf:
        raise InvalidArgument(f"mean must lie between low and high, got {low:g}, {mean:g}, {high:g}")
    if not 1 <= held_s < math.inf:
        raise InvalidArgument(f"held_s must be at least 1 s, got {held_s:g}")
    rng = np.random.default_rng(seed)
    share = (mean - low) / (high - low)
    levels: list[float] = []
    while len(levels) < seconds:
        levels += [rng.beta(3 * share, 3 * (1 - share))] * int(rng.geometric(1 / held_s))
    drawn = np.array(levels[:seconds])
    # A power keeps 0 and 1 where they are; the one that gives the mean is found by halving.
    least, most = -8.0, 8.0
    for _ in range(60):
        middle = (least + most) / 2
        least, most = (middle, most) if (drawn ** math.exp(middle)).mean() > share else (least, middle)
    rates: list[float] = (low + (high - low) * drawn ** math.exp(most)).tolist()
    return rates


def squeezed(counts: Sequence[float], into: int, mean: float) -> list[float]:
    """Counts of so many seconds (or whatever they were counted in) added up into one, then scaled to a mean (§V).

    Raises:
        InvalidArgument: there are fewer counts than that, or all are 0.
    """
    whole = len(counts) // into * into
    sums = np.asarray(counts[:whole], np.float64).reshape(-1, into).sum(axis=1)
    if not len(sums) or not sums.sum() > 0:
        raise InvalidArgument(f"counts must be at least {into}, and not all 0")
    rates: list[float] = (sums * (mean / sums.mean())).tolist()
    return rates
