"""Requests that are cancelled at any time, over gRPC and HTTP, including streams."""

from __future__ import annotations

import asyncio
import random

from reliability import counters
from reliability.load import send
from reliability.rows import MIN_REQUESTS, Guarantee, none_failed
from reliability.server_under_test import ServerUnderTest
from testing.waiting import until
from tidal_client import AsyncClient

_COUNT, _QUICK_COUNT = 1000, 70
_CLIENTS = 8
# A tiny model takes some milliseconds: some requests are cancelled before they arrive, some after the answer.
_LATEST_S = 0.02
_IDLE_WITHIN_S = 60.0


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Cancel requests until other clients have sent enough, then check that nothing of them is left."""
    least = _QUICK_COUNT if target.quick else _COUNT
    before = target.processes()
    count = in_time = 0
    with target.load(uncounted=[model.name for model in target.models]) as load:
        while count < least or (not target.quick and len(load.sent) < MIN_REQUESTS):
            in_time += asyncio.run(_cancel(target, count, count + least))
            count += least
        load.wait_for(50)
    metrics = target.served.report["metrics"]
    until(lambda: counters.in_flight(metrics, target.models) == 0, _IDLE_WITHIN_S)
    left = counters.in_flight(metrics, target.models)
    changed = before ^ target.processes()
    return [
        none_failed(
            "other requests while requests are cancelled", len(load.sent), count, load.failures(), quick=target.quick
        ),
        Guarantee(
            "cancelled requests that are still in flight",
            count,
            count,
            left,
            left,
            "left",
            "== 0",
            f"{in_time:,} were cancelled before their answer arrived",
        ),
        Guarantee("processes that cancellations end", count, count, len(changed), len(changed), "changed", "== 0"),
    ]


async def _cancel(target: ServerUnderTest, first: int, end: int) -> int:
    """Cancel the requests with these numbers; return how many had no answer yet."""
    report = target.served.report
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
                task = asyncio.create_task(send(client, target.models[number % len(target.models)], number))
                await asyncio.sleep(draw.uniform(0, _LATEST_S))
                cancelled += task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        await asyncio.gather(*(one(seed) for seed in range(_CLIENTS)))
    return cancelled
