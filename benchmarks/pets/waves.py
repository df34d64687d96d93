"""Waves of queries: a wave sends one request per task at once, and two waves are in flight at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.texts import TextMaker
from tidal_client import AsyncClient

# Number of waves in flight: the next wave is sent while one runs, so that no system waits for its client.
_UNDER_WAY = 2
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class WaveShape:
    """Shape of a wave: number of tasks, of queries per task (which share a request), and of tokens per query."""

    tasks: int
    batch: int
    length: int

    def __str__(self) -> str:
        """Name in tables and claims."""
        return f"{self.tasks} x {self.batch}, {self.length} tokens"


@dataclass(slots=True)
class Waves:
    """Results of the waves of one system."""

    queries: int = 0
    seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)  # of a request
    failed: int = 0
    first_error: str = ""

    @property
    def per_second(self) -> float:
        """Answered queries per second."""
        return self.queries / self.seconds

    def percentile(self, percent: float) -> float:
        """Return a percentile of the requests' latency in ms."""
        return float(np.percentile(self.latencies_ms, percent))


# Name of a task, and the texts of a request to it.
Request = tuple[str, tuple[str, ...]]


def make_waves(maker: TextMaker, tasks: Sequence[str], shape: WaveShape, count: int) -> list[list[Request]]:
    """Return waves of new texts, with one request per task."""
    return [
        [(task, tuple(maker.text(shape.length) for _ in range(shape.batch))) for task in tasks[: shape.tasks]]
        for _ in range(count)
    ]


def run_waves(url: str, model: str, waves: Sequence[Sequence[Request]], *, warm: int = 2) -> Waves:
    """Send waves; the first `warm` are not counted."""
    return asyncio.run(_run(url, model, waves, warm))


async def _run(url: str, model: str, waves: Sequence[Sequence[Request]], warm: int) -> Waves:
    found = Waves()
    async with AsyncClient(url, timeout_s=_TIMEOUT_S) as client:
        await asyncio.gather(*(_ask(client, model, request, Waves()) for request in chain(*waves[:warm])))
        queue = iter(waves[warm:])
        begin = time.monotonic()
        await asyncio.gather(*(_send(client, model, queue, found) for _ in range(_UNDER_WAY)))
        found.seconds = time.monotonic() - begin
    return found


async def _send(client: AsyncClient, model: str, queue: Iterator[Sequence[Request]], found: Waves) -> None:
    for wave in queue:
        await asyncio.gather(*(_ask(client, model, request, found) for request in wave))


async def _ask(client: AsyncClient, model: str, request: Request, found: Waves) -> None:
    task, texts = request
    begin = time.monotonic()
    try:
        await client.infer(model, {"text_input": as_input(texts)}, outputs=["label"], task=task)
    except Exception as error:
        found.failed += 1
        found.first_error = found.first_error or str(error)
        return
    found.latencies_ms.append((time.monotonic() - begin) * 1e3)
    found.queries += len(texts)


def as_input(texts: Sequence[str]) -> npt.NDArray[Any]:
    """Return the tensor `text_input`, [rows, 1] bytes."""
    return np.array([[text.encode()] for text in texts], object)
