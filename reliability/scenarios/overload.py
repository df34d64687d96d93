"""Overload of a model: it keeps its throughput, rejects the other queries at once, and recovers."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reliability import counters
from reliability.models import HEAVY_QUEUE, text
from reliability.rows import Guarantee, none_failed
from reliability.server_under_test import ServerUnderTest
from testing.metrics import published
from testing.waiting import until
from tidal_client import AsyncClient
from tidal_client.load import LoadResult, Schedule, poisson, run_load, text_inputs

MIN_GOODPUT = 0.9
REJECTED_P50_MS, REJECTED_P99_MS = 5.0, 50.0
RECOVERED_WITHIN_S = 1.0
MIN_SERVICE_MS = 10.0
_FACTORS = (2.0, 5.0)
# Pause between requests to the other models, whose load is not measured here.
_PAUSE_S = 0.5
_IN_FLIGHT = (4, 8, 12)
_WORDS = 100
# Load after an overload as a share of the capacity, and consecutive answers after which the overload is over.
_CALM = 0.5
_IN_A_ROW = 10
# Share of an overload after which the queue is full.
_FILLED = 0.2
_TEXTS = [f"{text(number, 20)} " + "good " * _WORDS for number in range(16)]


@dataclass(frozen=True, slots=True)
class OverloadResult:
    """An overload and the calm after it.

    Attributes:
        goodput: Answers per second during the overload.
        rejected_ms: Time of each rejection, milliseconds.
        recovered_s: Time after the overload until all queries are answered again, seconds.
        requests: Number of requests that were sent.
        ended: Number of requests that were answered or rejected.
        failed: Outcomes of the other requests.
    """

    goodput: float
    rejected_ms: npt.NDArray[np.float64]
    recovered_s: float
    requests: int
    ended: int
    failed: list[str]


@dataclass(slots=True)
class _CapacityMeter:
    """Measures the capacity of the model repeatedly, because the speed of a machine varies.

    Attributes:
        grpc: Address of the gRPC endpoint.
        seconds: Duration of a measurement.
        requests: Number of requests so far.
        alone_s: Latency of one query at a time, seconds.
        clients: Number of clients with the highest throughput.
    """

    grpc: str
    seconds: float
    requests: int = 0
    alone_s: float = 0.0
    clients: int = 0

    def search(self) -> float:
        """Search the number of clients with the highest throughput; return that, answers per second."""
        found = asyncio.run(self._search())
        return found[self.clients]

    def again(self) -> float:
        """Measure the throughput with that number of clients again."""
        return asyncio.run(self._again())

    async def _search(self) -> dict[int, float]:
        async with AsyncClient(f"grpc://{self.grpc}") as client:
            await self._run(client, 1)  # warms up
            self.alone_s = 1 / await self._run(client, 1)
            found = {clients: await self._run(client, clients) for clients in _IN_FLIGHT}
        self.clients = max(found, key=found.__getitem__)
        return found

    async def _again(self) -> float:
        async with AsyncClient(f"grpc://{self.grpc}") as client:
            return await self._run(client, self.clients)

    async def _run(self, client: AsyncClient, clients: int) -> float:
        first, begin = self.requests, time.monotonic()

        async def one() -> None:
            while time.monotonic() < begin + self.seconds:
                self.requests += 1
                await client.classify("heavy", _TEXTS[self.requests % len(_TEXTS)], outputs=["label"])

        await asyncio.gather(*(one() for _ in range(clients)))
        return (self.requests - first) / (time.monotonic() - begin)


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Alternate overloads of twice and five times the capacity with measurements of the capacity."""
    seconds, rounds = (2.0, 1) if target.quick else (10.0, 3)
    with target.load(pause_s=_PAUSE_S) as load:
        before = _counted(target)
        peak = _CapacityMeter(target.served.report["grpc"], seconds / 2)
        capacity = last = peak.search()
        found: dict[float, list[tuple[OverloadResult, float]]] = {factor: [] for factor in _FACTORS}
        for round_number in range(rounds):
            for factor in _FACTORS:
                overload = _overload(target, capacity, factor, seconds, seed=round_number)
                previous, last = last, peak.again()
                found[factor].append((overload, (previous + last) / 2))
        ended = sum(overload.ended for results in found.values() for overload, _ in results)
        rows = [
            Guarantee(
                "queries are long enough to be judged",
                peak.requests,
                0,
                0,
                peak.alone_s * 1e3,
                "ms",
                f">= {MIN_SERVICE_MS:g}",
                f"capacity {capacity:.1f} a second",
            ),
            *(row for factor, results in found.items() for row in _rows(results, factor)),
            _exactly_once(target, before, peak.requests + ended),
        ]
    changes = len(_FACTORS) * rounds
    return [
        *rows,
        none_failed("other models under overload", len(load.sent), changes, load.failures(), quick=target.quick),
    ]


def _rows(results: Sequence[tuple[OverloadResult, float]], factor: float) -> list[Guarantee]:
    """Return the rows of a factor: the median of goodput over the capacity around each overload, the rest over all."""
    refused = np.concatenate([overload.rejected_ms for overload, _ in results])
    p50, p99 = np.percentile(refused, (50, 99)) if len(refused) else (np.inf, np.inf)
    failed = [each for overload, _ in results for each in overload.failed]
    shares = [overload.goodput / peak for overload, peak in results]
    requests, at = sum(overload.requests for overload, _ in results), f"at {factor:g}x capacity"
    note = "; ".join(f"{overload.goodput:.1f} of {peak:.1f} a second" for overload, peak in results)
    return [
        Guarantee(
            f"goodput {at}",
            requests,
            0,
            len(failed),
            statistics.median(shares),
            "of peak",
            f">= {MIN_GOODPUT:g}",
            failed[0] if failed else note,
        ),
        Guarantee(f"rejections {at}: median", len(refused), 0, 0, float(p50), "ms", f"<= {REJECTED_P50_MS:g}"),
        Guarantee(f"rejections {at}: 99th percentile", len(refused), 0, 0, float(p99), "ms", f"<= {REJECTED_P99_MS:g}"),
        Guarantee(
            f"recovery after load {at}",
            requests,
            0,
            0,
            max(overload.recovered_s for overload, _ in results),
            "s",
            f"<= {RECOVERED_WITHIN_S:g}",
        ),
    ]


def _overload(target: ServerUnderTest, peak: float, factor: float, seconds: float, *, seed: int) -> OverloadResult:
    """Send Poisson arrivals at a multiple of the capacity, then at half of it."""
    calm = max(3.0, seconds / 3)
    before = poisson(factor * peak, seconds=seconds, seed=1000 * seed + int(factor))
    after = seconds + poisson(_CALM * peak, seconds=calm, seed=1000 * seed + int(factor) + 100)
    schedule = Schedule(np.concatenate([before, after]), text_inputs(_TEXTS))
    # HTTP is the cheapest protocol for clients, which share the machine with the server.
    url = f"http://{target.served.report['http']}"
    result = run_load(url, "heavy", schedule, outputs=["label"], timeout_s=20)
    codes = np.array(result.codes)[result.status]
    rejected = codes == "UNAVAILABLE"
    # Not counted while the queue fills.
    good = int((result.answered & (result.done > _FILLED * seconds) & (result.done <= seconds)).sum())
    other = ~rejected & ~result.answered
    failed = [f"{code}: {result.messages[code]}" for code in codes[other].tolist()]
    took = (result.done - result.sent) * 1e3
    return OverloadResult(
        goodput=good / ((1 - _FILLED) * seconds),
        rejected_ms=took[rejected],
        recovered_s=_recovered(result, seconds, peak),
        requests=len(schedule),
        ended=int(result.answered.sum() + rejected.sum()),
        failed=failed,
    )


def _recovered(result: LoadResult, end_s: float, peak: float) -> float:
    """Return the seconds after the overload until all queries are answered, and faster than from a full queue."""
    after = result.scheduled >= end_s
    full_queue_s = HEAVY_QUEUE / peak
    well = (result.answered & (result.latency < full_queue_s))[after]
    times = result.scheduled[after] - end_s
    for place in range(len(well) - _IN_A_ROW + 1):
        if well[place : place + _IN_A_ROW].all():
            return float(times[place])
    return float("inf")


def _counted(target: ServerUnderTest) -> int:
    page = counters.page(target.served.report["metrics"])
    return int(published(page, "tidal_arlo_requests_total", model="heavy"))


def _exactly_once(target: ServerUnderTest, before: int, client: int) -> Guarantee:
    until(lambda: _counted(target) - before == client, 10)
    server = _counted(target) - before
    what = "under overload, answers that client and server counted"
    return Guarantee(
        what, client, 0, abs(client - server), abs(client - server), "apart", "== 0", f"{client} and {server}"
    )
