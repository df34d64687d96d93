"""A thousand clients that disconnect from a gateway: every slot is free again, and soon."""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.gateway.http_load import Connection, Request
from benchmarks.gateway.survival import disconnect, taken_slots
from reliability import counters
from reliability.gateways import before, classifications, generations
from reliability.models import CHAT, CHAT_SLOTS, add_gateway_models
from reliability.rows import Guarantee
from reliability.server_under_test import ServerUnderTest
from testing.waiting import until

_COUNT = 1_000
_MAX_TOKENS = 2_000
_FREE_WITHIN_S = 30.0
_ROUNDS = 20
# Issue: 100 ms plus the running step, and what the next request's first step takes.
_BOUND_MS = 100.0


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Disconnect from streams, whole generations and classifications; then measure how soon a slot is free."""
    add_gateway_models(target.folder, target.repository.folder)
    target.stop()
    with before(target) as gateway:
        requests = [*generations(gateway, _MAX_TOKENS), classifications(gateway)[0]]
        processes = target.processes()
        early = disconnect(requests, _COUNT)
        freed = until(lambda: taken_slots(target.served, CHAT) == 0, _FREE_WITHIN_S)
        lost = 0 if freed else int(taken_slots(target.served, CHAT))
        until(lambda: counters.in_flight(target.served.report["metrics"], target.models) == 0, _FREE_WITHIN_S)
        in_flight = counters.in_flight(target.served.report["metrics"], target.models)
        ended = len(processes - target.processes())
        stream = requests[0]
        alone, waited = asyncio.run(_waits(stream))
    added = statistics.median(waited) - statistics.median(alone)
    note = f"first event {statistics.median(alone):.0f} ms with a free slot, {statistics.median(waited):.0f} ms after"
    return [
        Guarantee("slots lost after disconnects", _COUNT, early, lost, lost, "slots", "== 0", f"{early} had no answer"),
        Guarantee("queries left in flight by disconnects", _COUNT, early, in_flight, in_flight, "queries", "== 0"),
        Guarantee("processes that disconnects end", _COUNT, early, ended, ended, "processes", "== 0"),
        Guarantee(
            "time from a disconnect to the first step of the next query (median, without that step)",
            _ROUNDS,
            _ROUNDS,
            0,
            added,
            "ms",
            f"<= {_BOUND_MS:g}",
            note,
        ),
    ]


async def _waits(stream: Request) -> tuple[list[float], list[float]]:
    """Milliseconds until the first event with a free slot, and from a disconnect while all slots are in use."""
    alone, waited = [], []
    for _ in range(_ROUNDS):
        connection = await Connection.open(stream.address)
        began = time.monotonic()
        await connection.stream(stream.encoded(), b"data:")
        alone.append((time.monotonic() - began) * 1e3)
        connection.close()
        await asyncio.sleep(0.3)
        holders = [await Connection.open(stream.address) for _ in range(CHAT_SLOTS)]
        await asyncio.gather(*(each.stream(stream.encoded(), b"data:") for each in holders))
        next_one = await Connection.open(stream.address)
        first = asyncio.ensure_future(next_one.stream(stream.encoded(), b"data:"))
        await asyncio.sleep(0.15)
        began = time.monotonic()
        queued = not first.done()
        holders[0].close()
        await first
        if queued:
            waited.append((time.monotonic() - began) * 1e3)
        for each in (*holders[1:], next_one):
            each.close()
        await asyncio.sleep(0.3)
    return alone, waited or [float("inf")]
