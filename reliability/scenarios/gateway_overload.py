"""Five times as many requests as a model can answer, through a gateway with a bounded queue."""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import time
from dataclasses import dataclass, field

from benchmarks.gateway.http_load import Connection, Request, closed_loop
from reliability.gateways import before
from reliability.models import text
from reliability.rows import Guarantee
from reliability.server_under_test import ServerUnderTest

_FACTOR, _MIN_GOODPUT = 5.0, 0.9
_ROUNDS, _SECONDS = 3, 10.0
_OUTSTANDING = 12
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *(\d+)", re.IGNORECASE)


@dataclass(slots=True)
class _Offered:
    """Outcomes of an overload: statuses, and the `Retry-After` of each refusal."""

    statuses: list[int] = field(default_factory=list)
    retry_after: list[int | None] = field(default_factory=list)


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Alternate measurements of the capacity with overloads of five times that."""
    goodput, offered, capacities = [], _Offered(), []
    with before(target, "--max-outstanding", str(_OUTSTANDING)) as gateway:
        body = {"model": "heavy", "input": f"{text(1, 20)} " + "good " * 100}
        request = Request(gateway.address, "/v1/classify", body)
        for _ in range(_ROUNDS):
            capacity = asyncio.run(closed_loop(request, concurrency=8, seconds=_SECONDS / 2)).per_second
            answered = asyncio.run(_overload(request, capacity * _FACTOR, _SECONDS, offered))
            again = asyncio.run(closed_loop(request, concurrency=8, seconds=_SECONDS / 2)).per_second
            capacities += [capacity, again]
            goodput.append(answered / ((capacity + again) / 2))
    others = [each for each in offered.statuses if each not in (200, 429)]
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
            f"{shown}; capacity {statistics.median(capacities):.0f} requests/s, {len(offered.retry_after)} refused",
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


async def _overload(request: Request, rate: float, seconds: float, offered: _Offered) -> float:
    """Offer requests at random times; return the answers per second."""
    content, free, draw = request.encoded(), list[Connection](), random.Random(61_000)
    answers, tasks = 0, set[asyncio.Task[None]]()
    began = time.monotonic()

    async def one() -> None:
        nonlocal answers
        connection = free.pop() if free else await Connection.open(request.address)
        status, _ = await connection.send(content)
        offered.statuses.append(status)
        if status == 429:
            found = _RETRY_AFTER.search(connection.head)
            offered.retry_after.append(int(found[1]) if found else None)
        elif status == 200 and time.monotonic() < began + seconds:
            answers += 1
        free.append(connection)

    due = began
    while due < began + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        task = asyncio.create_task(one())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due += draw.expovariate(rate)
    await asyncio.gather(*tasks)
    for connection in free:
        connection.close()
    return answers / seconds
