"""Counts requests that fail while `tidal controller` changes the allocation of a real server under shifting traffic."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.texts import TextMaker
from tidal.arlo.manifest import load_arlo_manifest
from tidal.controller.decisions import PlanSettings
from tidal.controller.event_log import EventLog
from tidal.controller.host import HostController
from tidal.controller.metrics import ClusterMetrics
from tidal.controller.scaling import ScalingSettings
from tidal.controller.server_finder import ControlledServer
from tidal.errors import Unsupported
from tidal.repository.entries import ModelEntry
from tidal.server.child import tidal_serve
from tidal_client import AsyncClient

_CLIENTS = 4
_PERIOD_S = 3.0
# Seconds after which the lengths shift again if the controller has not changed the allocation.
_SHIFT_S = 60.0
_AT_MOST_S = 600.0
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ReallocationResult:
    """Result of a run.

    Attributes:
        sent: Number of queries sent.
        failed: Number of queries with an error instead of an answer, timeouts included.
        changes: Number of completed changes of the allocation.
        seconds: Duration of the run in seconds.
        change_s: Duration of each change in seconds.
        allocations: Instances by `max_length`, before the first change and after each.
        worst_ms: Longest time that a client waited for an answer.
        first_error: First failure; "" if there was none.
    """

    sent: int
    failed: int
    changes: int
    seconds: float
    change_s: tuple[float, ...]
    allocations: tuple[dict[str, int], ...]
    worst_ms: float
    first_error: str


def measure(
    repository: Path, model: str, *, changes: int = 3, at_least: int = 1000, period_s: float = _PERIOD_S, seed: int = 0
) -> ReallocationResult:
    """Serve a partitioned model, send queries whose lengths shift, and let the controller change the allocation.

    All queries have the length of one runtime for a while, then of another, so that the best allocation changes. The
    run ends after `changes` changes and `at_least` queries, but at the latest after ten minutes.

    Args:
        repository: Model repository; the allocation of the model is changed.
        model: Name of the model.
        changes: Number of changes of the allocation.
        at_least: Lower bound of the number of queries.
        period_s: Period of the controller in seconds.
        seed: Seed of the texts.

    Raises:
        Unsupported: The model has one runtime only, so that there is nothing to allocate.
    """
    version_dir = ModelEntry(repository / model).latest()
    assert version_dir is not None, f"{model} is not published"
    manifest = load_arlo_manifest(version_dir)
    lengths = [runtime.max_length for runtime in manifest.runtimes]
    if len(lengths) < 2:
        raise Unsupported(f"model '{model}' has one runtime: there is nothing to allocate")
    maker = TextMaker(version_dir / manifest.tokenizer.file, seed)
    # Short, long, middle, long, and again: consecutive lengths differ as much as possible.
    shifts = itertools.cycle([lengths[0], lengths[-1], lengths[(len(lengths) - 1) // 2], lengths[-1]])
    events: list[dict[str, Any]] = []
    journal = EventLog(lambda line: events.append(json.loads(line)), as_json=True)
    stop = threading.Event()
    with tidal_serve(repository, "--model", model) as server:
        controlled = ControlledServer(server.control, server.state)
        settings = PlanSettings(period_s, scaling=ScalingSettings(None, only_node=True))
        controller = HostController(lambda: controlled, settings, [model], journal, ClusterMetrics())
        thread = threading.Thread(target=controller.run, args=(stop,), name="controller")
        thread.start()
        try:
            traffic = _Traffic(maker, model)
            asyncio.run(traffic.run(server.grpc, shifts, events, changes, at_least))
        finally:
            stop.set()
            thread.join()
    done = [event for event in events if event["event"] == "changed"]
    decided = [event for event in events if event["event"] == "decision" and event["before"] != event["after"]]
    return ReallocationResult(
        sent=traffic.sent,
        failed=len(traffic.errors),
        changes=len(done),
        seconds=traffic.seconds,
        change_s=tuple(event["seconds"] for event in done),
        allocations=tuple([event["before"] for event in decided[:1]] + [event["after"] for event in decided]),
        worst_ms=traffic.worst_s * 1e3,
        first_error=next(iter(traffic.errors), ""),
    )


class _Traffic:
    """Clients in a closed loop: each sends its next query when the previous one is answered."""

    def __init__(self, maker: TextMaker, model: str) -> None:
        self.sent = 0
        self.errors: list[str] = []
        self.worst_s = self.seconds = 0.0
        self._maker, self._model = maker, model
        self._length = 0
        self._ends = False

    async def run(
        self, url: str, shifts: Iterator[int], events: list[dict[str, Any]], changes: int, at_least: int
    ) -> None:
        began = time.monotonic()
        self._length = next(shifts)
        async with AsyncClient(url, timeout_s=_TIMEOUT_S) as client:
            clients = [asyncio.create_task(self._client(client)) for _ in range(_CLIENTS)]
            seen, shifted = 0, began
            while time.monotonic() - began < _AT_MOST_S:
                await asyncio.sleep(0.2)
                done = sum(event["event"] == "changed" for event in events)
                if done >= changes and self.sent >= at_least:
                    break
                if done > seen or time.monotonic() - shifted > _SHIFT_S:
                    seen, shifted, self._length = done, time.monotonic(), next(shifts)
            self._ends = True
            await asyncio.gather(*clients)
        self.seconds = time.monotonic() - began

    async def _client(self, client: AsyncClient) -> None:
        while not self._ends:
            text = self._maker.text(self._length)
            self.sent += 1
            began = time.monotonic()
            try:
                await client.classify(self._model, text, outputs=["label"])
            except Exception as error:  # any exception is a failed query
                self.errors.append(f"{type(error).__name__}: {error}")
            self.worst_s = max(self.worst_s, time.monotonic() - began)
