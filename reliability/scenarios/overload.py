"""More queries than a model can answer: it goes on answering as many as before, refuses the rest at once, recovers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reliability import counters
from reliability.bench import Bench
from reliability.models import HEAVY_QUEUE, text
from reliability.rows import Row
from tests.metrics import published
from tests.waiting import until
from tidal_client import AsyncClient
from tidal_client.load import LoadResult, Schedule, poisson, run_load, text_inputs

LEAST_GOODPUT = 0.9
REJECTED_P50_MS, REJECTED_P99_MS = 5.0, 50.0
RECOVERED_WITHIN_S = 1.0
LEAST_SERVICE_MS = 10.0
_FACTORS = (2.0, 5.0)
# Load on the other models meanwhile: there, but not what is measured.
_PAUSE_S = 0.5
_IN_FLIGHT = (4, 8, 12)
_WORDS = 100
# After an overload arrivals go on at this share of the capacity; as many answers in a row say that it is over.
_CALM = 0.5
_IN_A_ROW = 10
# Share of an overload after which the queue is full.
_FILLED = 0.2
_TEXTS = [f"{text(number, 20)} " + "good " * _WORDS for number in range(16)]


@dataclass(frozen=True, slots=True)
class Overload:
    """A stretch of too many queries and the calm after it."""

    goodput: float
    rejected_ms: npt.NDArray[np.float64]
    recovered_s: float
    requests: int
    failed: list[str]


def run(bench: Bench) -> list[Row]:
    """Measure the capacity, then send twice and five times as much."""
    seconds = 2.0 if bench.quick else 10.0
    rows = []
    with bench.load(pause_s=_PAUSE_S) as load:
        before = _counted(bench)
        alone, peak, asked = asyncio.run(_capacity(bench.served.report["grpc"], seconds / 2))
        rows.append(Row("queries are long enough to be judged", asked, 0, 0, alone * 1e3, "ms",
                        f">= {LEAST_SERVICE_MS:g}", f"capacity {peak:.1f} a second"))  # fmt: skip
        answers = 0
        for factor in _FACTORS:
            found, answered = _overload(bench, peak, factor, seconds)
            answers += answered
            rows += _rows(found, peak, factor)
        rows.append(_exactly_once(bench, before, asked + answers))
    rows.append(Row("other models under overload", len(load.sent), len(_FACTORS), len(load.failures()),
                    len(load.failures()), "failed", "== 0", next(iter(load.failures()), "")))  # fmt: skip
    return rows


def _rows(found: Overload, peak: float, factor: float) -> list[Row]:
    p50, p99 = np.percentile(found.rejected_ms, (50, 99)) if len(found.rejected_ms) else (np.inf, np.inf)
    rejected, at = len(found.rejected_ms), f"at {factor:g}x capacity"
    note = found.failed[0] if found.failed else f"{found.goodput:.1f} of {peak:.1f} answers a second"
    return [
        Row(f"goodput {at}", found.requests, 0, len(found.failed), found.goodput / peak, "of peak",
            f">= {LEAST_GOODPUT:g}", note),
        Row(f"rejections {at}: median", rejected, 0, 0, float(p50), "ms", f"<= {REJECTED_P50_MS:g}"),
        Row(f"rejections {at}: 99th percentile", rejected, 0, 0, float(p99), "ms", f"<= {REJECTED_P99_MS:g}"),
        Row(f"recovery after load {at}", found.requests, 0, 0, found.recovered_s, "s", f"<= {RECOVERED_WITHIN_S:g}"),
    ]  # fmt: skip


async def _capacity(grpc: str, seconds: float) -> tuple[float, float, int]:
    """Seconds of a query alone; most answers a second, over several numbers of clients; how many were asked."""
    async with AsyncClient(f"grpc://{grpc}") as client:
        asked = 0

        async def one(until_s: float) -> None:
            nonlocal asked
            while time.monotonic() < until_s:
                asked += 1
                await client.classify("heavy", _TEXTS[asked % len(_TEXTS)], outputs=["label"])

        async def run(clients: int) -> float:
            first, begin = asked, time.monotonic()
            await asyncio.gather(*(one(begin + seconds) for _ in range(clients)))
            return (asked - first) / (time.monotonic() - begin)

        await run(1)
        alone = 1 / await run(1)
        return alone, max([await run(clients) for clients in _IN_FLIGHT]), asked


def _overload(bench: Bench, peak: float, factor: float, seconds: float) -> tuple[Overload, int]:
    """Poisson arrivals at a multiple of the capacity, then at half of it; also how many were answered or refused."""
    calm = max(3.0, seconds / 3)
    before = poisson(factor * peak, seconds=seconds, seed=int(factor))
    after = seconds + poisson(_CALM * peak, seconds=calm, seed=int(factor) + 100)
    schedule = Schedule(np.concatenate([before, after]), text_inputs(_TEXTS))
    # HTTP costs this machine, which is the server's too, the least.
    url = f"http://{bench.served.report['http']}"
    result = run_load(url, "heavy", schedule, outputs=["label"], timeout_s=20)
    codes = np.array(result.codes)[result.status]
    rejected = codes == "UNAVAILABLE"
    # Not while the queue fills.
    good = int((result.answered & (result.done > _FILLED * seconds) & (result.done <= seconds)).sum())
    other = ~rejected & ~result.answered
    failed = [f"{code}: {result.messages[code]}" for code in codes[other].tolist()]
    took = (result.done - result.sent) * 1e3
    found = Overload(
        good / ((1 - _FILLED) * seconds), took[rejected], _recovered(result, seconds, peak), len(schedule), failed
    )
    return found, int(result.answered.sum() + rejected.sum())


def _recovered(result: LoadResult, end_s: float, peak: float) -> float:
    """Seconds after the end of the overload from which all are answered, and sooner than from a full queue."""
    after = result.scheduled >= end_s
    full_queue_s = HEAVY_QUEUE / peak
    well = (result.answered & (result.latency < full_queue_s))[after]
    times = result.scheduled[after] - end_s
    for place in range(len(well) - _IN_A_ROW + 1):
        if well[place : place + _IN_A_ROW].all():
            return float(times[place])
    return float("inf")


def _counted(bench: Bench) -> int:
    page = counters.page(bench.served.report["metrics"])
    return int(published(page, "tidal_arlo_requests_total", model="heavy"))


def _exactly_once(bench: Bench, before: int, client: int) -> Row:
    until(lambda: _counted(bench) - before == client, 10)
    server = _counted(bench) - before
    what = "under overload, answers that client and server counted"
    return Row(what, client, 0, abs(client - server), abs(client - server), "apart", "== 0", f"{client} and {server}")
