"""One load on emulated devices and on the simulator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import psutil

from benchmarks.cluster.emulated.systems import ComparedSystem
from benchmarks.cluster.simulated.figures import Setting
from benchmarks.cluster.simulated.inputs import MAX_LENGTHS, ClusterData
from tidal.simulator.arlo import LengthHistory, length_history, simulate
from tidal.simulator.requests import Floats
from tidal.simulator.traces import RecordedRequests
from tidal_client.load import Schedule, run_load

# Time between lone queries beyond their latency, in seconds.
_PAUSE_S = 0.02
_TIMEOUT_S = 60.0
# Other arrivals than the measured ones, from which Arlo's instances are determined and what is measured is warmed.
_HISTORY_SEED = 500


@dataclass(frozen=True, slots=True)
class EmulatedRun:
    """A system under a load.

    Attributes:
        latencies_ms: Latencies of answered queries in ms of the paper's time.
        failed: Number of queries without an answer.
        cpu: Share of the machine's cores that was used.
    """

    latencies_ms: Floats
    failed: int
    cpu: float

    @property
    def mean_ms(self) -> float:
        """Mean latency."""
        return float(self.latencies_ms.mean())

    @property
    def p98_ms(self) -> float:
        """98th percentile of the latency."""
        return float(np.percentile(self.latencies_ms, 98))


def history_of(data: ClusterData, setting: Setting) -> LengthHistory:
    """Return past queries of a setting: 120 s of other arrivals."""
    past = data.workload(setting.rate, 120, minute=setting.minute - 3, bursty=setting.bursty, seed=_HISTORY_SEED)
    return length_history(past)


def requests_of(data: ClusterData, setting: Setting, seconds: int, seed: int) -> RecordedRequests:
    """Return the queries of a round, in the paper's time."""
    minute = setting.minute + seed
    found = list(data.workload(setting.rate, seconds, minute=minute, bursty=setting.bursty, seed=seed))
    times, lengths = (np.concatenate([getattr(each, name) for each in found]) for name in ("times", "lengths"))
    return RecordedRequests(times, lengths, MAX_LENGTHS[-1])


def simulated(
    system: ComparedSystem, setting: Setting, history: LengthHistory, requests: RecordedRequests, overhead_s: float
) -> Floats:
    """Return simulated latencies in ms, with the overhead that lone queries have."""
    return simulate(system.simulated(setting, history), requests, overhead_s=overhead_s).latencies_s * 1e3


def run(urls: Sequence[str], model: str, requests: RecordedRequests, stretch: float) -> EmulatedRun:
    """Send queries to one or more entrances, with all times stretched.

    Args:
        urls: Addresses of the entrances; queries are distributed.
        model: Name of the model.
        requests: Queries in the paper's time.
        stretch: Factor on all times.
    """
    schedule = Schedule(requests.times * stretch, [token_ids(int(length)) for length in requests.lengths])
    psutil.cpu_percent()
    found = run_load(list(urls), model, schedule, outputs=["logits"], timeout_s=_TIMEOUT_S)
    cpu = psutil.cpu_percent() / 100
    latencies = found.latency[found.answered] * 1e3 / stretch
    return EmulatedRun(np.asarray(latencies, np.float64), int((~found.answered).sum()), cpu)


def lone_overhead_ms(url: str, model: str, latencies_s: Sequence[float], *, queries: int) -> float:
    """Return the mean time in ms that lone queries of the shortest runtime take longer than their device.

    Args:
        url: Address of the entrance.
        model: Name of the model.
        latencies_s: Seconds that a device of each runtime takes.
        queries: Number of queries.
    """
    taken = latencies_s[0]
    times = np.arange(queries) * (taken + _PAUSE_S)
    found = run_load(url, model, Schedule(times, [token_ids(20)]), outputs=["logits"], timeout_s=_TIMEOUT_S)
    return float(found.latency[found.answered].mean() - taken) * 1e3


def warm(url: str, model: str) -> None:
    """Run every device some times."""
    lengths = np.random.default_rng(0).integers(2, MAX_LENGTHS[-1], 200)
    run_load(
        url, model, Schedule(np.arange(200) / 100, [token_ids(int(length)) for length in lengths]), outputs=["logits"]
    )
    time.sleep(0.5)


def token_ids(length: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """Return the input of a query of this length."""
    return {"input_ids": np.ones((1, length), np.int64)}
