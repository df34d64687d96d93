"""Chooses by simulation the instances of the partitioned systems, and the bin size of the INFaaS-like front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.arlo.simulate import simulate
from benchmarks.arlo.workload import ArloWorkload, arrivals
from tidal.arlo.manifest import ArloManifest
from tidal.arlo.parameters import SLO_LATENCIES
from tidal.arlo.policies import ArloBatch, PartitionedPolicy
from tidal.simulator.arlo.dispatch import BinPacking

_FILLS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
# Rates to choose for, as shares of the capacity of as many instances that pad to the longest input: from ST's loads up
# to the saturation of two instances.
_RATES = (0.4, 0.7, 1.5)
_SEED = 40


@dataclass(frozen=True, slots=True)
class Allocation:
    """Chosen allocation.

    Attributes:
        instances: Number of instances by `max_length`.
        slo_ms: Latency objective in ms.
        fill: Bin size of the INFaaS-like front, as a share of the capacity within the SLO.
        partitioned_ms: Simulated mean latency of the partitioned system over the rates, in ms.
        bin_packing_ms: Simulated mean latency of the INFaaS-like front over the rates, in ms.
    """

    instances: dict[int, int]
    slo_ms: float
    fill: float
    partitioned_ms: float
    bin_packing_ms: float


def choose(manifest: ArloManifest, workload: ArloWorkload, *, instances: int, requests: int = 1500) -> Allocation:
    """Choose one instance of the longest runtime, and the others of the runtime with the lowest mean latency.

    Both systems get the allocation that is best with Arlo's dispatching, so that they differ in dispatching only. The
    bin size is the best of the INFaaS-like front.

    Args:
        manifest: Manifest of the partitioned model.
        workload: Generator of lengths.
        instances: Number of instances.
        requests: Number of simulated requests per rate.
    """
    lengths = [runtime.max_length for runtime in manifest.runtimes]
    latencies = [manifest.profile.latency_ms(length) / 1e3 for length in lengths]
    slo_s = SLO_LATENCIES * latencies[-1]
    tokens = workload.lengths(requests, _SEED)
    traces = [arrivals("poisson", share * instances / latencies[-1], requests, _SEED).tolist() for share in _RATES]

    def mean_ms(make: type[PartitionedPolicy], counts: Sequence[int], **options: Any) -> float:
        means = [
            np.mean(simulate(make(lengths, latencies, slo_s, counts, **options), times, tokens, seconds))
            for times in traces
        ]
        return float(np.mean(means)) * 1e3

    def seconds(batch: ArloBatch) -> float:
        return latencies[batch.runtime]

    def counts(length: int) -> list[int]:
        return [(n == length) * (instances - 1) + (n == lengths[-1]) for n in lengths]

    partitioned = {length: mean_ms(PartitionedPolicy, counts(length)) for length in lengths}
    best = min(partitioned, key=partitioned.__getitem__)
    packed = {fill: mean_ms(BinPacking, counts(best), fill=fill) for fill in _FILLS}
    fill = min(packed, key=packed.__getitem__)
    return Allocation(
        dict(zip(lengths, counts(best), strict=True)), round(slo_s * 1e3), fill, partitioned[best], packed[fill]
    )
