"""Requests withdrawn at any moment, over gRPC and HTTP, streams among them."""

from __future__ import annotations

import asyncio
import random

from reliability import counters
from reliability.bench import Bench
from reliability.load import ask
from reliability.rows import LEAST_REQUESTS, Row, none_failed
from testing.waiting import until
from tidal_client import AsyncClient

_COUNT, _QUICK_COUNT = 1000, 70
_CLIENTS = 8
# A tiny model takes some milliseconds: some are withdrawn before they arrive, some after the answer.
_LATEST_S = 0.02
_SETTLED_WITHIN_S = 60.0


def run(bench: Bench) -> list[Row]:
    """Cancel requests until others have sent enough, then see that nothing of them is left."""
    least = _QUICK_COUNT if bench.quick else _COUNT
    before = bench.processes()
    count = in_time = 0
    with bench.load(uncounted=[model.name for model in bench.models]) as load:
        while count < least or (not bench.quick and len(load.sent) < LEAST_REQUESTS):
            in_time += asyncio.run(_cancel(bench, count, count + least))
            count += least
        load.goes_on(50)
    metrics = bench.served.report["metrics"]
    until(lambda: counters.in_flight(metrics, bench.models) == 0, _SETTLED_WITHIN_S)
    left = counters.in_flight(metrics, bench.models)
    changed = before ^ bench.processes()
    return [
        none_failed("other requests while requests are cancelled", len(load.sent), count, load.failures(),
                    quick=bench.quick),
        Row("cancelled requests that are still in flight", count, count, left, left, "left", "== 0",
            f"{in_time:,} were cancelled before their answer came"),
        Row("processes that cancellations end", count, count, len(changed), len(changed), "changed", "== 0"),
    ]  # fmt: skip


async def _cancel(bench: Bench, first: int, end: int) -> int:
    """Withdraw the requests of these numbers; how many had no answer by then."""
    report = bench.served.report
    numbers, cancelled = iter(range(first, end)), 0
    async with (
        AsyncClient(f"grpc://{report['grpc']}", timeout_s=20) as grpc,
        AsyncClient(f"http://{report['http']}", timeout_s=20) as http,
    ):

        async def one(seed: int) -> None:
            nonlocal cancelled
            draw = random.Random(first + seed)
            for number in numbers:
                client = grpc if draw.random() < 0.7 else http
                task = asyncio.create_task(ask(client, bench.models[number % len(bench.models)], number))
                await asyncio.sleep(draw.uniform(0, _LATEST_S))
                cancelled += task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        await asyncio.gather(*(one(seed) for seed in range(_CLIENTS)))
    return cancelled
