"""Expected gain of the policies alone, by the measured profile; the difference to the measurement is overhead."""

from __future__ import annotations

import statistics

import numpy as np

from benchmarks.arlo.simulate import FirstComeFirstServed, simulate
from benchmarks.arlo.workload import ArloWorkload, arrivals
from tidal.arlo.manifest import ArloManifest
from tidal.arlo.policies import ArloBatch, PolymorphicPolicy
from tidal.profiles import LatencyProfile

_SEEDS = range(60, 65)
_REQUESTS = 1500


def expected_ratios(manifest: ArloManifest, workload: ArloWorkload) -> list[list[str]]:
    """Return rows of load, and ratio of mean and p98 latency of the polymorphic placement to DT, for Poisson arrivals.

    DT is the better of one engine with all threads and one engine per thread, first come first served.

    Args:
        manifest: Manifest of the polymorphic model.
        workload: Generator of lengths.
    """
    ways = [profile for profile in (manifest.profile, manifest.parallel) if profile is not None]
    lengths = np.array(workload.lengths(10_000, _SEEDS[0]))
    capacity = max(way.concurrency / (way.table_ms[lengths, 1].mean() / 1e3) for way in ways)
    rows = []
    for percent in (40, 70, 90):
        means, tails = [], []
        for seed in _SEEDS:
            times = arrivals("poisson", capacity * percent / 100, _REQUESTS, seed).tolist()
            tokens = workload.lengths(_REQUESTS, seed)
            dt = min((_first_come(way, times, tokens) for way in ways), key=lambda seconds: float(np.mean(seconds)))
            ours = _polymorphic(manifest, times, tokens)
            means.append(float(np.mean(ours) / np.mean(dt)))
            tails.append(float(np.percentile(ours, 98) / np.percentile(dt, 98)))
        rows.append([f"{percent} % of DT", f"{statistics.median(means):.3f}", f"{statistics.median(tails):.3f}"])
    return rows


def _first_come(way: LatencyProfile, times: list[float], tokens: list[int]) -> list[float]:
    policy = FirstComeFirstServed(way.concurrency)
    return simulate(policy, times, tokens, lambda batch: _seconds(way, batch))


def _polymorphic(manifest: ArloManifest, times: list[float], tokens: list[int]) -> list[float]:
    policy = PolymorphicPolicy(
        [runtime.max_length for runtime in manifest.runtimes],
        manifest.profile,
        manifest.parallel,
        static_upto=0,
        max_batch=manifest.runtimes[-1].max_batch,
    )

    def seconds(batch: ArloBatch) -> float:
        wide = manifest.parallel is None or batch.lane < manifest.profile.concurrency
        return _seconds(manifest.profile if wide or manifest.parallel is None else manifest.parallel, batch)

    return simulate(policy, times, tokens, seconds)


def _seconds(way: LatencyProfile, batch: ArloBatch) -> float:
    return float(way.table_ms[max(query.length for query in batch.queries), len(batch.queries)]) / 1e3
