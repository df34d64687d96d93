"""Five times as many requests as a model can answer, through a gateway with a bounded queue."""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import time
from dataclasses import dataclass, field, replace
from functools import partial

import uvloop

from benchmarks.gateway.http_load import Connection, Request, closed_loop
from reliability.gateways import before
from reliability.models import text
from reliability.rows import Guarantee
from reliability.server_under_test import ServerUnderTest

_FACTOR, _MIN_GOODPUT = 5.0, 0.9
_ROUNDS, _SECONDS = 3, 10.0
_OUTSTANDING = 12
# Deadline of the requests, as a multiple of the time in which a full queue is answered.
_DEADLINE_QUEUES = 2.0
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *(\d+)", re.IGNORECASE)


@dataclass(slots=True)
class _Offered:
    """Outcomes of an overload: statuses, the `Retry-After` of each refusal, answers that came after their deadline."""

    statuses: list[int] = field(default_factory=list)
    retry_after: list[int | None] = field(default_factory=list)
    late: int = 0


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Alternate measurements of the capacity with overloads of five times that."""
    goodput, offered, capacities = [], _Offered(), []
    with before(target, "--max-outstanding", str(_OUTSTANDING)) as gateway:
        body = {"model": "heavy", "input": f"{text(1, 20)} " + "good " * 100}
        request = Request(gateway.address, "/v1/classify", body)
        for _ in range(_ROUNDS):
            # The client shares the model's processor: it costs as little as it can, and the same in both measurements.
            capacity = uvloop.run(closed_loop(request, concurrency=8, seconds=_SECONDS / 2)).per_second
            deadline_s = _DEADLINE_QUEUES * _OUTSTANDING / capacity
            timed = replace(request, body={**body, "latency_ms": round(deadline_s * 1e3)})
            answered = uvloop.run(_overload(timed, capacity * _FACTOR, _SECONDS, deadline_s, offered))
            again = uvloop.run(closed_loop(request, concurrency=8, seconds=_SECONDS / 2)).per_second
            capacities += [capacity, again]
            goodput.append(answered / ((capacity + again) / 2))
    # 504: the deadline has passed, which costs goodput and is no failure of the gateway.
    others = [each for each in offered.statuses if each not in (200, 429, 504)]
    without = sum(each is None for each in offered.retry_after)
    # When half of the queue is answered, at the measured rate.
    expected = max(1.0, _OUTSTANDING / 2 / statistics.median(capacities))
    apart = sum(each is not None and not expected <= each <= expected + 2 for each in offered.retry_after)
    shown = ", ".join(f"{each:.2f}" for each in goodput)
    return [
        Guarantee(
            "goodput through the gateway at 5 times the capacity",
            len(offered.statuses),
            0,
            len(others),
            statistics.median(goodput),
            "of the peak",
            f">= {_MIN_GOODPUT}",
            f"{shown}; capacity {statistics.median(capacities):.0f} requests/s, {len(offered.retry_after)} refused, "
            f"{offered.statuses.count(504) + offered.late} late",
        ),
        Guarantee(
            "refusals without a Retry-After of the measured rate",
            len(offered.retry_after),
            0,
            without + apart,
            without + apart,
            "refusals",
            "== 0",
            f"expected {expected:.1f} s",
        ),
    ]


async def _overload(request: Request, rate: float, seconds: float, deadline_s: float, offered: _Offered) -> float:
    """Offer requests at random times; return the answers per second that arrived within their deadline."""
    content, free, draw = request.encoded(), list[Connection](), random.Random(61_000)
    answers, waiting = 0, list[asyncio.Future[tuple[int, bytes]]]()
    began = time.monotonic()

    def answered(connection: Connection, sent: float, answer: asyncio.Future[tuple[int, bytes]]) -> None:
        nonlocal answers
        if answer.exception() is not None:  # raised below
            return
        status, _ = answer.result()
        offered.statuses.append(status)
        if status == 429:
            found = _RETRY_AFTER.search(connection.head)
            offered.retry_after.append(int(found[1]) if found else None)
        elif status == 200:
            now = time.monotonic()
            offered.late += now > sent + deadline_s
            answers += now < began + seconds and now <= sent + deadline_s
        free.append(connection)

    due = began
    while due < began + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        sent = time.monotonic()
        connection = free.pop() if free else await Connection.open(request.address)
        # Without a task for each request, which takes as much as sending it.
        waiting.append(connection.begin(content))
        waiting[-1].add_done_callback(partial(answered, connection, sent))
        due += draw.expovariate(rate)
    await asyncio.gather(*waiting)
    for connection in free:
        connection.close()
    return answers / seconds
