"""Inputs of the simulation: latencies from Arlo's Figure 2, and its workloads; `ASSUMED` lists every assumption."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from tidal.simulator.arlo import TWEETS, Bursts, ServiceTimes, SyntheticRequests, scaled_lengths
from tidal.simulator.traces import read_lengths, read_rates

MAX_LENGTHS = tuple(range(64, 513, 64))
# Bin size of INFaaS, as a share of the queries that an instance finishes within the SLO.
INFAAS_FILL = 0.02
HEADROOM = 0.1
# How many times as long a query takes with dynamic shapes: the smallest published value, the hardest to beat.
DT_INFLATION = 1.22
_BURSTS = Bursts()
_DRIFT, _DRIFT_S = 0.2, 1800.0

READ_OFF = (
    "Bert-Base: 4.86 ms at 512 tokens, 4.22 times length 64 (§2.1, §2.2); Bert-Large: 5.25 times length 64",
    "static latency is a staircase of 64 tokens (§3.3); dynamic shapes cost 1.22 to 3.56 times as much (§2.2)",
    "SLO 150 and 450 ms; λ 0.85, α 0.9, L 6, period 120 s, replacement 1 s, overhead 0.8 ms per request (§4, §5)",
)
ASSUMED = (
    "the steps of the staircase are of equal height (Figure 2 is a picture without numbers)",
    "the 11 ms of Bert-Large at 512 tokens, and the parameters of bursts: of a few values tried, those that reproduce "
    "Arlo's latencies in Table 4 and ST's overload in Figure 10b",
    f"dynamic shapes cost {DT_INFLATION:g} times as much at all lengths, the smallest published value; "
    "`benchmarks.cluster.inflation` has the results for others",
    f"INFaaS: equal numbers of each runtime, bins of {INFAAS_FILL:.0%} of the capacity within the SLO (fitted to "
    f"Figure 6a's mean against INFaaS only), headroom of {HEADROOM:.0%} of GPU time when autoscaling",
    f"bursts: {_BURSTS.factor:g} times the mean rate for {_BURSTS.mean_s:g} s on average, "
    f"{_BURSTS.share:.0%} of the time",
    f"drift of the lengths: one factor on all lengths, its logarithm with a deviation of {_DRIFT:g} and a correlation "
    f"time of {_DRIFT_S / 60:g} min, slow enough for an allocation every 120 s to follow; with 5 min it cannot",
    "the rates of Figures 11 and 12 and of Table 3 (7,000 per second) and of Figure 8 (1,000 per second)",
)


@dataclass(frozen=True)
class Stream:
    """A model, its SLO in seconds, and its service times."""

    name: str
    slo_s: float
    times: ServiceTimes

    def inflated(self, inflation: float) -> Stream:
        """Return the model with other costs of dynamic shapes.

        Args:
            inflation: Latency with dynamic shapes over that of the shortest runtime that fits.
        """
        static = np.asarray(self.times.static_s)
        tokens = np.arange(self.times.longest + 1)
        step = np.searchsorted(self.times.max_lengths, np.maximum(tokens, 1))
        return replace(self, times=replace(self.times, dynamic_s=tuple((static[step] * inflation).tolist())))


def stream(name: str, slo_s: float, last_ms: float, ratio: float) -> Stream:
    """Return a model that takes `last_ms` at 512 tokens, and `ratio` times less at 64 tokens."""
    static = np.linspace(last_ms / ratio, last_ms, len(MAX_LENGTHS)) / 1e3
    return Stream(name, slo_s, ServiceTimes(MAX_LENGTHS, tuple(static.tolist()))).inflated(DT_INFLATION)


BASE = stream("Bert-Base", 0.150, 4.86, 4.22)
LARGE = stream("Bert-Large", 0.450, 11.0, 5.25)


@dataclass(frozen=True)
class ClusterData:
    """Rates and lengths of requests.

    Args:
        folder: Folder with `twitter_2021_rate/per_second.csv.gz` and `tweet_lengths/lengths.csv`; None for synthetic
            data.
    """

    folder: Path | None

    @property
    def description(self) -> str:
        """Description of the data."""
        if self.folder is None:
            return "synthetic data: rates that vary by 13 % from second to second, lengths by the percentiles of tweets"
        return "rates of the public Twitter stream by second (August 2021), token lengths of 92,403 public tweets"

    def workload(
        self, rate: float, seconds: int, *, minute: int = 620, bursty: bool = False, drift: bool = True, seed: int = 0
    ) -> SyntheticRequests:
        """Return requests at a mean rate, from a minute of the trace on."""
        trace = self._day[minute * 60 : minute * 60 + seconds]
        lengths, weights = self._lengths
        return SyntheticRequests(
            (trace * (rate / trace.mean())).tolist(),
            scaled_lengths(lengths, 125, MAX_LENGTHS[-1]),
            weights,
            bursts=_BURSTS if bursty else None,
            drift=_DRIFT if drift else 0.0,
            drift_s=_DRIFT_S,
            seed=seed,
        )

    @cached_property
    def _day(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        if self.folder is None:
            rng = np.random.default_rng(0)
            swell = 1 + 0.3 * np.sin(np.arange(86400) / 300.0)
            return np.asarray(swell * rng.lognormal(0, 0.13, 86400))
        return np.asarray(read_rates(self.folder / "twitter_2021_rate" / "per_second.csv.gz", seconds=86400))

    @cached_property
    def _lengths(self) -> tuple[list[int], list[float]]:
        return read_lengths(TWEETS if self.folder is None else str(self.folder / "tweet_lengths" / "lengths.csv"))
