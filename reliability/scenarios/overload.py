"""More queries than a model can answer: it goes on answering as many as before, refuses the rest at once, recovers."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reliability import counters
from reliability.bench import Bench
from reliability.models import HEAVY_QUEUE, text
from reliability.rows import Row, none_failed
from testing.metrics import published
from testing.waiting import until
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
    """A stretch of too many queries and the calm after it.

    Attributes:
        goodput: answers a second while there were too many.
        rejected_ms: how long each refusal took.
        recovered_s: after the stretch, until all are answered again.
        requests: how many were sent.
        ended: how many were answered or refused.
        failed: what became of the others.
    """

    goodput: float
    rejected_ms: npt.NDArray[np.float64]
    recovered_s: float
    requests: int
    ended: int
    failed: list[str]


@dataclass(slots=True)
class _Peak:
    """How many queries a second the model answers at most, measured again and again: machines have better minutes."""

    grpc: str
    seconds: float
    asked: int = 0
    alone_s: float = 0.0
    clients: int = 0

    def search(self) -> float:
        """Find how many clients bring the most answers; that many a second."""
        found = asyncio.run(self._search())
        return found[self.clients]

    def again(self) -> float:
        """Measure once more with as many clients."""
        return asyncio.run(self._again())

    async def _search(self) -> dict[int, float]:
        async with AsyncClient(f"grpc://{self.grpc}") as client:
            await self._run(client, 1)  # which warms up
            self.alone_s = 1 / await self._run(client, 1)
            found = {clients: await self._run(client, clients) for clients in _IN_FLIGHT}
        self.clients = max(found, key=found.__getitem__)
        return found

    async def _again(self) -> float:
        async with AsyncClient(f"grpc://{self.grpc}") as client:
            return await self._run(client, self.clients)

    async def _run(self, client: AsyncClient, clients: int) -> float:
        first, begin = self.asked, time.monotonic()

        async def one() -> None:
            while time.monotonic() < begin + self.seconds:
                self.asked += 1
                await client.classify("heavy", _TEXTS[self.asked % len(_TEXTS)], outputs=["label"])

        await asyncio.gather(*(one() for _ in range(clients)))
        return (self.asked - first) / (time.monotonic() - begin)


def run(bench: Bench) -> list[Row]:
    """Measure the capacity, then send twice and five times as much, in turns with the capacity."""
    seconds, rounds = (2.0, 1) if bench.quick else (10.0, 3)
    with bench.load(pause_s=_PAUSE_S) as load:
        before = _counted(bench)
        peak = _Peak(bench.served.report["grpc"], seconds / 2)
        capacity = last = peak.search()
        found: dict[float, list[tuple[Overload, float]]] = {factor: [] for factor in _FACTORS}
        for turn in range(rounds):
            for factor in _FACTORS:
                overload = _overload(bench, capacity, factor, seconds, seed=turn)
                previous, last = last, peak.again()
                found[factor].append((overload, (previous + last) / 2))
        ended = sum(overload.ended for turns in found.values() for overload, _ in turns)
        rows = [
            Row("queries are long enough to be judged", peak.asked, 0, 0, peak.alone_s * 1e3, "ms",
                f">= {LEAST_SERVICE_MS:g}", f"capacity {capacity:.1f} a second"),
            *(row for factor, turns in found.items() for row in _rows(turns, factor)),
            _exactly_once(bench, before, peak.asked + ended),
        ]  # fmt: skip
    changes = len(_FACTORS) * rounds
    return [
        *rows,
        none_failed("other models under overload", len(load.sent), changes, load.failures(), quick=bench.quick),
    ]


def _rows(turns: Sequence[tuple[Overload, float]], factor: float) -> list[Row]:
    """Of every stretch with the peak that was measured around it: goodput by the median, the rest over all of them."""
    refused = np.concatenate([overload.rejected_ms for overload, _ in turns])
    p50, p99 = np.percentile(refused, (50, 99)) if len(refused) else (np.inf, np.inf)
    failed = [each for overload, _ in turns for each in overload.failed]
    shares = [overload.goodput / peak for overload, peak in turns]
    requests, at = sum(overload.requests for overload, _ in turns), f"at {factor:g}x capacity"
    note = "; ".join(f"{overload.goodput:.1f} of {peak:.1f} a second" for overload, peak in turns)
    return [
        Row(f"goodput {at}", requests, 0, len(failed), statistics.median(shares), "of peak",
            f">= {LEAST_GOODPUT:g}", failed[0] if failed else note),
        Row(f"rejections {at}: median", len(refused), 0, 0, float(p50), "ms", f"<= {REJECTED_P50_MS:g}"),
        Row(f"rejections {at}: 99th percentile", len(refused), 0, 0, float(p99), "ms", f"<= {REJECTED_P99_MS:g}"),
        Row(f"recovery after load {at}", requests, 0, 0, max(overload.recovered_s for overload, _ in turns), "s",
            f"<= {RECOVERED_WITHIN_S:g}"),
    ]  # fmt: skip


def _overload(bench: Bench, peak: float, factor: float, seconds: float, *, seed: int) -> Overload:
    """Poisson arrivals at a multiple of the capacity, then at half of it."""
    calm = max(3.0, seconds / 3)
    before = poisson(factor * peak, seconds=seconds, seed=1000 * seed + int(factor))
    after = seconds + poisson(_CALM * peak, seconds=calm, seed=1000 * seed + int(factor) + 100)
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
    return Overload(
        goodput=good / ((1 - _FILLED) * seconds),
        rejected_ms=took[rejected],
        recovered_s=_recovered(result, seconds, peak),
        requests=len(schedule),
        ended=int(result.answered.sum() + rejected.sum()),
        failed=failed,
    )


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
