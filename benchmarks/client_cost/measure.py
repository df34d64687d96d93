"""CPU time of this process per call, in blocks of calls that alternate between the two clients."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass

from benchmarks.client_cost.calls import SYSTEMS, AsyncCall, Call, blocking, with_asyncio

# Calls before each block, which open connections and fill caches.
_WARMING = 50


@dataclass(frozen=True, slots=True)
class Blocks:
    """Numbers of blocks and calls.

    Attributes:
        rounds: Blocks of each client.
        calls: Calls of a block.
    """

    rounds: int
    calls: int


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of calls.

    Attributes:
        rounds: CPU time per call in µs, threads of libraries included, in each round by client.
    """

    rounds: dict[str, list[float]]

    @property
    def added_us(self) -> list[float]:
        """CPU time per call that Tidal's client takes beyond tritonclient's, in each round, in µs."""
        return [ours - bare for ours, bare in zip(*(self.rounds[system] for system in SYSTEMS), strict=True)]

    def median_us(self, system: str) -> float:
        """Median CPU time per call of a client, in µs."""
        return statistics.median(self.rounds[system])

    @property
    def per_second(self) -> list[float]:
        """Calls per second of CPU time of Tidal's client, in each round."""
        return [1e6 / each for each in self.rounds[SYSTEMS[0]]]


def blocking_cost(protocol: str, location: str, blocks: Blocks) -> Cost:
    """Measure blocking calls, one after the other.

    Args:
        protocol: `grpc` or `http`.
        location: ``host:port`` of the server.
        blocks: Numbers of blocks and calls.
    """

    def block(call: Call, calls: int) -> None:
        for _ in range(calls):
            call()

    with ExitStack() as stack:
        made = {system: stack.enter_context(blocking(system, protocol, location)) for system in SYSTEMS}
        rounds: dict[str, list[float]] = {system: [] for system in SYSTEMS}
        for system in _turns(blocks.rounds):
            block(made[system], _WARMING)
            started = _start()
            block(made[system], blocks.calls)
            rounds[system].append((time.process_time() - started) / blocks.calls * 1e6)
    return Cost(rounds)


async def asyncio_cost(protocol: str, location: str, blocks: Blocks, *, in_flight: int) -> Cost:
    """Measure asyncio calls.

    Args:
        protocol: `grpc` or `http`.
        location: ``host:port`` of the server.
        blocks: Numbers of blocks and calls.
        in_flight: Number of tasks that call at the same time.
    """

    async def task(call: AsyncCall, calls: int) -> None:
        for _ in range(calls):
            await call()

    async def block(call: AsyncCall, calls: int) -> None:
        await asyncio.gather(*(task(call, calls // in_flight) for _ in range(in_flight)))

    async with AsyncExitStack() as stack:
        made = {system: await stack.enter_async_context(with_asyncio(system, protocol, location)) for system in SYSTEMS}
        rounds: dict[str, list[float]] = {system: [] for system in SYSTEMS}
        calls = blocks.calls // in_flight * in_flight
        for system in _turns(blocks.rounds):
            await block(made[system], max(_WARMING, in_flight))
            started = _start()
            await block(made[system], calls)
            rounds[system].append((time.process_time() - started) / calls * 1e6)
    return Cost(rounds)


def _turns(rounds: int) -> list[str]:
    """Return the client of each block; the order is reversed in every second round."""
    return [system for turn in range(rounds) for system in (SYSTEMS if turn % 2 == 0 else SYSTEMS[::-1])]


def _start() -> float:
    gc.collect()
    return time.process_time()
