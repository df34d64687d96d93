"""One measurement: a closed loop, with the CPU time of each process per request and the mean batch size."""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from benchmarks.closed_loop import metric
from benchmarks.request_path.load import Generator, Requests
from tidal.server.child import RunningServer
from tidal.server.stubs import live_stubs

CLIENT, TRITONSERVER, STUB = "client", "tritonserver", "stub"
# Systems that form batches themselves and count them; the names of their models end with the system's.
BATCHING = ("arlo", "pets", "otas")
# Tidal's models publish their metrics every 200 ms.
_PUBLISHED_S, _POLL_S = 1.5, 0.05


@dataclass(frozen=True, slots=True)
class RequestPathCell:
    """One measurement.

    Attributes:
        per_second: Requests per second; parts per second of a model that streams.
        p50_ms: Median latency in ms.
        p99_ms: 99th percentile of the latency in ms.
        cpu_ms: CPU time per request in ms, by process.
        mean_batch: Mean number of requests per batch.
        utilisation: Share of the cores that server and client used, from 0 to 1.
        tokens: Mean number of tokens of a part of a streamed answer; 0 if the answers are not streamed.
    """

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: dict[str, float]
    mean_batch: float
    utilisation: float
    tokens: float

    @property
    def server_cpu_ms(self) -> float:
        """CPU time of the server's processes per request in ms."""
        return self.cpu_ms[TRITONSERVER] + self.cpu_ms[STUB]


def measure(
    server: RunningServer, generator: Generator, requests: Requests, *, concurrency: int, seconds: float
) -> RequestPathCell:
    """Keep a number of requests in flight, and return what they cost.

    Raises:
        LoadFailed: A request failed.
    """
    before, cpu, start = _counts(server, requests.model), cpu_seconds(server, requests.model), time.monotonic()
    loop = generator.run(server.state.grpc, requests, concurrency=concurrency, seconds=seconds)
    elapsed = time.monotonic() - start
    used = {name: after - cpu[name] for name, after in cpu_seconds(server, requests.model).items()}
    counts = _counts_since(server, requests.model, before)
    return RequestPathCell(
        loop.per_second,
        loop.p50_ms,
        loop.p99_ms,
        {name: 1e3 * spent / max(1, counts["answered"]) for name, spent in used.items()},
        counts["queries"] / max(1, counts["batches"]),
        sum(used.values()) / elapsed / (os.cpu_count() or 1),
        loop.tokens,
    )


def medians(cells: Sequence[RequestPathCell]) -> RequestPathCell:
    """Return the median of every figure over rounds."""
    return RequestPathCell(
        statistics.median(cell.per_second for cell in cells),
        statistics.median(cell.p50_ms for cell in cells),
        statistics.median(cell.p99_ms for cell in cells),
        {name: statistics.median(cell.cpu_ms[name] for cell in cells) for name in cells[0].cpu_ms},
        statistics.median(cell.mean_batch for cell in cells),
        statistics.median(cell.utilisation for cell in cells),
        statistics.median(cell.tokens for cell in cells),
    )


def cpu_seconds(server: RunningServer, model: str) -> dict[str, float]:
    """Return the CPU seconds used so far by the clients that have ended, tritonserver and a model's stubs."""
    ended, own = resource.getrusage(resource.RUSAGE_CHILDREN), os.times()
    stubs = [stub.pid for stub in live_stubs(server.state.server_pid) if stub.model == model]
    return {
        CLIENT: ended.ru_utime + ended.ru_stime + own.user + own.system,
        TRITONSERVER: _used(server.state.server_pid),
        STUB: sum(map(_used, stubs)),
    }


def _used(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _counts_since(server: RunningServer, model: str, before: Counter[str]) -> Counter[str]:
    """Return the counts since `before` once all answered requests are in the model's metrics."""
    until = time.monotonic() + _PUBLISHED_S
    while True:
        counts = _counts(server, model) - before
        if counts["queries"] >= counts["answered"] or time.monotonic() > until:
            return counts
        time.sleep(_POLL_S)


def _counts(server: RunningServer, model: str) -> Counter[str]:
    """Return the numbers of answered requests, of queries in batches, and of batches, of Tidal's own or Triton's."""
    with urllib.request.urlopen(f"http://{server.state.http}/v2/models/{model}/stats", timeout=10) as response:
        stats = json.load(response)["model_stats"]
    found = Counter({"answered": sum(each["inference_stats"]["success"].get("count", 0) for each in stats)})
    if system := next((each for each in BATCHING if model.endswith(each)), None):
        queries, batches = metric(server, f"tidal_{system}_batch_size_queries", model) or (0.0, 0.0)
    else:
        queries, batches = (sum(each[name] for each in stats) for name in ("inference_count", "execution_count"))
    return found + Counter({"queries": int(queries), "batches": int(batches)})
