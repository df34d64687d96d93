"""A closed loop of gRPC clients, with the server's metrics over the same time."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from tidal.server.child import RunningServer
from tidal_client import AsyncClient

_SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class LoopResult:
    """Result of a closed loop.

    Attributes:
        per_second: Answers per second.
        failed: Number of failed queries.
        mean_batch: Mean number of queries per engine execution.
        utilisation: Share of the cores that the server used, from 0 to 1.
    """

    per_second: float
    failed: int
    mean_batch: float
    utilisation: float


def closed_loop(
    server: RunningServer, model: str, texts: Sequence[str], *, concurrency: int, seconds: float
) -> LoopResult:
    """Keep `concurrency` queries in flight for `seconds`; each text is sent at most once."""
    before = batches(server, model)
    cpu = cpu_seconds(server)
    start = time.monotonic()
    done, failed = asyncio.run(_run(server.grpc, model, texts, concurrency, seconds))
    elapsed = time.monotonic() - start
    queries, executions = (after - before for after, before in zip(batches(server, model), before, strict=True))
    return LoopResult(
        done / elapsed,
        failed,
        queries / max(1, executions),
        (cpu_seconds(server) - cpu) / elapsed / (psutil.cpu_count() or 1),
    )


async def _run(url: str, model: str, texts: Sequence[str], concurrency: int, seconds: float) -> tuple[int, int]:
    done = failed = 0
    queue = iter(texts)
    async with AsyncClient(url) as client:
        until = time.monotonic() + seconds

        async def one() -> None:
            nonlocal done, failed
            while time.monotonic() < until and (text := next(queue, None)) is not None:
                try:
                    await client.classify(model, text, outputs=["label", "logits"])
                    done += 1
                except Exception:
                    failed += 1

        await asyncio.gather(*(one() for _ in range(concurrency)))
    return done, failed


def batches(server: RunningServer, model: str) -> tuple[float, float]:
    """Return the numbers of queries and engine executions of a model so far, from its own metrics or Triton's."""
    own = metric(server, "tidal_arlo_batch_size_queries", model)
    if own is not None:
        return own
    with urllib.request.urlopen(f"http://{server.state.http}/v2/models/{model}/stats", timeout=10) as response:
        stats = json.load(response)["model_stats"]
    return sum(s["inference_count"] for s in stats), sum(s["execution_count"] for s in stats)


def metric(server: RunningServer, family: str, model: str) -> tuple[float, float] | None:
    """Return the sum and count of a histogram over all versions of a model; None if it has no such metric."""
    found = {name: series(server, f"{family}_{name}", model) for name in ("sum", "count")}
    if found["count"] is None:
        return None
    return found["sum"] or 0.0, found["count"]


def series(server: RunningServer, name: str, model: str, **labels: str) -> float | None:
    """Return the value of a counter over all versions of a model; None if it has no such metric."""
    with urllib.request.urlopen(f"http://{server.state.metrics}/metrics", timeout=10) as response:
        return series_on(response.read().decode(), name, model, **labels)


def series_on(page: str, name: str, model: str, **labels: str) -> float | None:
    """Return the value that `series` returns, from the text of a /metrics page."""
    wanted = {"model": model, **labels}
    samples = ((family, dict(_LABEL.findall(found)), value) for family, found, value in _SAMPLE.findall(page))
    values = [float(value) for family, found, value in samples if family == name and wanted.items() <= found.items()]
    return sum(values) if values else None


def cpu_seconds(server: RunningServer) -> float:
    """Return the CPU seconds that the server's processes have used so far."""
    total = 0.0
    process = psutil.Process(server.state.server_pid)
    for each in (process, *process.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
