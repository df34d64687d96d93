"""Requests withdrawn at any moment, over gRPC and HTTP, streams among them."""

from __future__ import annotations

import asyncio
import random

from reliability import counters
from reliability.bench import Bench
from reliability.load import ask
from reliability.rows import Row
from tests.waiting import until
from tidal_client import AsyncClient

_COUNT, _QUICK_COUNT = 1000, 70
_CLIENTS = 8
# A tiny model takes some milliseconds: some are withdrawn before they arrive, some after the answer.
_LATEST_S = 0.02
_SETTLED_WITHIN_S = 60.0


def run(bench: Bench) -> list[Row]:
    """Cancel so many requests, then see that nothing of them is left."""
    count = _QUICK_COUNT if bench.quick else _COUNT
    before = bench.processes()
    with bench.load(uncounted=[model.name for model in bench.models]) as load:
        cancelled = asyncio.run(_cancel(bench, count))
        load.goes_on(50)
    metrics = bench.served.report["metrics"]
    until(lambda: counters.in_flight(metrics, bench.models) == 0, _SETTLED_WITHIN_S)
    left = counters.in_flight(metrics, bench.models)
    changed = before ^ bench.processes()
    return [
        Row("other requests while requests are cancelled", len(load.sent), count, len(load.failures()),
            len(load.failures()), "failed", "== 0", next(iter(load.failures()), f"{cancelled} of {count} in time")),
        Row("cancelled requests that are still in flight", count, count, left, left, "left", "== 0"),
        Row("processes that cancellations end", count, count, len(changed), len(changed), "changed", "== 0"),
    ]  # fmt: skip


async def _cancel(bench: Bench, count: int) -> int:
    """Withdraw so many requests; how many had no answer by then."""
    report = bench.served.report
    numbers, cancelled = iter(range(count)), 0
    async with (
        AsyncClient(f"grpc://{report['grpc']}", timeout_s=20) as grpc,
        AsyncClient(f"http://{report['http']}", timeout_s=20) as http,
    ):

        async def one(seed: int) -> None:
            nonlocal cancelled
            draw = random.Random(seed)
            for number in numbers:
                client = grpc if draw.random() < 0.7 else http
                task = asyncio.create_task(ask(client, bench.models[number % len(bench.models)], number))
                await asyncio.sleep(draw.uniform(0, _LATEST_S))
                cancelled += task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        await asyncio.gather(*(one(seed) for seed in range(_CLIENTS)))
    return cancelled
