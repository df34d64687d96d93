"""The simulator compared with the real server on this machine, under the same arrivals (Arlo §5.2)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.arlo.allocation import Allocation
from benchmarks.arlo.measure import ArloCell, capacity, measure, warm_up
from benchmarks.arlo.workload import LONGEST, ArloWorkload
from benchmarks.closed_loop import series
from benchmarks.cluster.simulated.calibration import Calibration, Observed
from benchmarks.report import progress
from tidal.arlo.manifest import ArloManifest
from tidal.server.child import RunningServer
from tidal.simulator.arlo import ClusterResult
from tidal.simulator.traces import RecordedRequests
from tidal_client.load import Schedule, run_load, text_inputs

#: Percent of the measured capacity.
LOADS = (40, 70)
CALIBRATED_AT = 55
_METRICS_DELAY_S = 0.5  # metrics are published every 200 ms
_TIMEOUT_S = 120.0
# Lone queries are separated by two service times and this pause, so that the previous one has been answered.
_LONE_PAUSE_S = 0.02
# Seeds of measured loads differ from those of calibrations and searches.
_CAPACITY_SEED, _LONE_SEED, _LOADED_SEED, _MEASURED_SEED = 5000, 6000, 7000, 8000


@dataclass(frozen=True, slots=True)
class FidelitySize:
    """Number of rounds, and duration of their parts in seconds."""

    rounds: int = 3
    capacity_s: float = 10.0
    lone_s: float = 20.0
    loaded_s: float = 20.0  # three times per round
    measured_s: float = 60.0


QUICK = FidelitySize(rounds=1, capacity_s=3.0, lone_s=4.0, loaded_s=3.0, measured_s=10.0)


@dataclass(frozen=True, slots=True)
class ComparedTrace:
    """One trace at one load, served and simulated.

    Args:
        percent: Load in percent of the capacity.
        rate: Mean number of requests per second.
        server: Measurements of the server.
        simulated: Simulation with the service times of the calibration.
        by_profile: Simulation with those of the manifest.
    """

    percent: int
    rate: float
    server: ArloCell
    simulated: ClusterResult
    by_profile: ClusterResult


@dataclass(frozen=True, slots=True)
class FidelityRound:
    """A calibration, and the traces measured between its runs."""

    capacity: float  # answers per second at full load
    calibration: Calibration
    compared: tuple[ComparedTrace, ...]


def measure_rounds(
    server: RunningServer,
    model: str,
    manifest: ArloManifest,
    allocation: Allocation,
    workload: ArloWorkload,
    sizes: FidelitySize,
) -> list[FidelityRound]:
    """Calibrate and measure in rounds, each with its own arrivals and lengths.

    Args:
        server: Running server with the model under the allocation.
        model: Name of a partitioned model.
        manifest: Manifest of the model.
        allocation: Instances and SLO of the model.
        workload: Generator of texts.
        sizes: Extent of the measurements.

    Raises:
        RuntimeError: A query of a calibration run failed.
    """
    return [_round(server, model, manifest, allocation, workload, sizes, turn) for turn in range(sizes.rounds)]


def error(simulated: float, measured: float) -> float:
    """Relative error of a simulated value, without its sign."""
    return abs(simulated / measured - 1)


def median_error(
    rounds: Sequence[FidelityRound], percent: int, *, p98: bool = False, by_profile: bool = False
) -> float:
    """Median over the rounds of the relative error at one load, of the mean latency or of the 98th percentile."""
    found = []
    for each in rounds:
        compared = next(one for one in each.compared if one.percent == percent)
        result, cell = compared.by_profile if by_profile else compared.simulated, compared.server
        pairs = (result.percentile_ms(98), cell.percentile_ms(98)) if p98 else (result.mean_ms, cell.mean_ms)
        found.append(error(*pairs))
    return statistics.median(found)


def _round(
    server: RunningServer,
    model: str,
    manifest: ArloManifest,
    allocation: Allocation,
    workload: ArloWorkload,
    sizes: FidelitySize,
    turn: int,
) -> FidelityRound:
    where = f"fidelity, round {turn + 1} of {sizes.rounds}"
    progress(f"{where}: full load, then lone queries")
    full = capacity(server, model, workload, seconds=sizes.capacity_s, seed=_CAPACITY_SEED + turn)
    lengths = [runtime.max_length for runtime in manifest.runtimes]
    profile_s = tuple(manifest.profile.latency_ms(length) / 1e3 for length in lengths)
    tokens = workload.lengths(1000, _LONE_SEED + turn)
    texts = workload.texts(1000, _LONE_SEED + turn)
    times = lone_times(tokens, lengths, profile_s, list(allocation.instances.values()), sizes.lone_s)
    lone = _observe(server, model, lengths, Schedule(times, text_inputs(texts[: len(times)])), workload)
    traces: list[RecordedRequests] = []

    def loaded() -> Observed:
        progress(f"{where}: calibrating at {CALIBRATED_AT} % of {full:.1f}/s")
        seed = _LOADED_SEED + 100 * turn + len(traces)
        trace, requests = _trace(workload, full * CALIBRATED_AT / 100, sizes.loaded_s, seed)
        traces.append(requests)
        return _observe(server, model, lengths, trace, workload)

    # The speed of a machine drifts within minutes, so the measured runs lie between the calibration runs.
    observed = loaded()
    measured: list[tuple[int, ArloCell, RecordedRequests]] = []
    for percent in LOADS if turn % 2 == 0 else reversed(LOADS):
        rate = full * percent / 100
        progress(f"{where}: measuring at {percent} %, {rate:.1f}/s")
        trace, requests = _trace(workload, rate, sizes.measured_s, _MEASURED_SEED + 100 * turn + percent)
        measured.append((percent, measure(server, model, trace, workload), requests))
        observed += loaded()
    instances = tuple(allocation.instances.values())
    calibration = Calibration(tuple(lengths), profile_s, instances, allocation.slo_ms / 1e3, lone, observed)
    calibration = calibration.calibrated(traces)
    compared = [
        ComparedTrace(
            percent, full * percent / 100, cell, calibration.by_calibration(requests), calibration.by_profile(requests)
        )
        for percent, cell, requests in measured
    ]
    return FidelityRound(full, calibration, tuple(compared))


def _trace(workload: ArloWorkload, rate: float, seconds: float, seed: int) -> tuple[Schedule, RecordedRequests]:
    """Return the same Poisson arrivals for the client and for the simulator, with at least 20 queries."""
    count = max(20, round(rate * seconds))
    trace = workload.trace("poisson", rate, count, seed)
    return trace, RecordedRequests(trace.times, np.asarray(workload.lengths(count, seed)), LONGEST)


def lone_times(
    tokens: Sequence[int],
    max_lengths: Sequence[int],
    profile_s: Sequence[float],
    instances: Sequence[int],
    seconds: float,
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return sending times so that each query is answered before the next one is sent.

    Args:
        tokens: Lengths of the queries in tokens.
        max_lengths: Lengths of the runtimes, ascending.
        profile_s: Service times of the runtimes in seconds.
        instances: Number of instances by runtime; runtimes without instances are not used.
        seconds: Duration; only queries that fit are sent.

    Returns:
        Times in seconds from the start, ascending.
    """
    usable = [runtime for runtime, count in enumerate(instances) if count]
    chosen = [next(runtime for runtime in usable if length <= max_lengths[runtime]) for length in tokens]
    gaps = [2 * profile_s[runtime] + _LONE_PAUSE_S for runtime in chosen]
    times = np.concatenate([[0.0], np.cumsum(gaps)[:-1]])
    return np.asarray(times[times < seconds], np.float64)


def _observe(
    server: RunningServer, model: str, lengths: Sequence[int], schedule: Schedule, workload: ArloWorkload
) -> Observed:
    """Send a schedule and read the metrics of the front."""
    warm_up(server, model, workload, seconds=0.5)
    time.sleep(_METRICS_DELAY_S)
    before = _executed(server, model, lengths)
    result = run_load(server.http, model, schedule, outputs=["label", "logits"], timeout_s=_TIMEOUT_S)
    time.sleep(_METRICS_DELAY_S)
    after = _executed(server, model, lengths)
    if not result.answered.all():
        raise RuntimeError(f"a query of a calibration run failed: {next(iter(result.messages.values()), '')}")
    busy, queries = (tuple(b - a for a, b in zip(*each, strict=True)) for each in zip(before, after, strict=True))
    return Observed(result.duration, busy, queries, float(result.latency.mean()))


def _executed(server: RunningServer, model: str, lengths: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return the seconds of execution and the number of queries so far, by runtime."""
    name = "tidal_arlo_execute_seconds"
    sums, counts = (
        [series(server, f"{name}_{kind}", model, runtime=str(length)) or 0.0 for length in lengths]
        for kind in ("sum", "count")
    )
    return sums, counts
