"""`tidal controller` as a subprocess, a controller as a thread, and traffic of chosen lengths."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from testing.serving import TIDAL
from testing.waiting import until
from tidal.controller.decisions import PlanSettings
from tidal.controller.event_log import EventLog
from tidal.controller.host import HostController
from tidal.controller.metrics import ClusterMetrics
from tidal.controller.scaling import ScalingSettings
from tidal.controller.server_finder import ServerFinder
from tidal_client import AsyncClient

# Number of clients, and their pause between requests: a load well below the instances' capacity.
_CLIENTS, _PAUSE_S = 4, 0.02


class ControllerEvents:
    """JSON events of a controller."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def running(self) -> bool:
        """Return whether more events may follow."""
        raise NotImplementedError

    def of(self, event: str, **facts: Any) -> list[dict[str, Any]]:
        """Return the events of a kind, in order."""
        return [
            each
            for each in list(self.events)
            if each["event"] == event and all(each.get(name) == value for name, value in facts.items())
        ]

    def wait_for(self, event: str, count: int = 1, seconds: float = 60, **facts: Any) -> bool:
        """Wait until `count` events of a kind have been printed; return whether that happens in time."""
        return until(lambda: len(self.of(event, **facts)) >= count or not self.running(), seconds) and (
            len(self.of(event, **facts)) >= count
        )


class RunningController(ControllerEvents):
    """A controller process and the JSON events that it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__()
        self.process = process
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def running(self) -> bool:
        return self.process.poll() is None

    def end(self) -> int:
        """Stop the controller by a signal and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self._reader.join()
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))


@contextmanager
def controller(environment: dict[str, str], *options: str) -> Iterator[RunningController]:
    """Run `tidal controller --json` until the end of the block."""
    process = subprocess.Popen(
        [*TIDAL, "controller", "--json", *options], env=environment, stdout=subprocess.PIPE, text=True
    )
    running = RunningController(process)
    try:
        yield running
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            running._reader.join()
            process.stdout.close()


class ControllerThread(ControllerEvents):
    """A controller in a thread of this process."""

    def __init__(self, settings: PlanSettings, poll_s: float, pause_s: float) -> None:
        super().__init__()
        log = EventLog(lambda line: self.events.append(json.loads(line)), as_json=True)
        self._stop = threading.Event()
        find, metrics = ServerFinder(None), ClusterMetrics()
        control = HostController(find, settings, (), log, metrics, poll_s=poll_s, pause_s=pause_s)
        self._thread = threading.Thread(target=control.run, args=(self._stop,))
        self._thread.start()

    def running(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        """Stop the controller and wait until it has ended."""
        self._stop.set()
        self._thread.join()


@contextmanager
def controller_thread(
    environment: dict[str, str], *, period_s: float, poll_s: float = 0.25, pause_s: float = 1.0, **bounds: int
) -> Iterator[ControllerThread]:
    """Run a controller in a thread until the end of the block, with shorter intervals than those of the command.

    Args:
        environment: Environment of its server.
        period_s: Time between two decisions about the lengths of queries, in seconds.
        poll_s: Interval between two readings of the metrics, in seconds.
        pause_s: Pause after a failed change, in seconds.
        bounds: `min_instances` and `max_instances`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", environment["XDG_RUNTIME_DIR"])
        scaling = ScalingSettings(bounds.get("min_instances"), bounds.get("max_instances"), only_node=True)
        running = ControllerThread(PlanSettings(period_s, scaling=scaling), poll_s, pause_s)
        try:
            yield running
        finally:
            running.end()


class Traffic:
    """Sends queries of `words` words from several clients while a block runs, and counts responses and failures."""

    def __init__(self, grpc: str, model: str, words: int) -> None:
        self.words = words
        self.sent = self.answered = 0
        self.failures: list[str] = []
        self._grpc, self._model = grpc, model
        self._done = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    async def _run(self) -> None:
        async with AsyncClient(f"grpc://{self._grpc}", timeout_s=20) as client:

            async def one() -> None:
                while not self._done.is_set():
                    self.sent += 1
                    try:
                        await client.classify(self._model, " ".join(["good"] * self.words), outputs=["label"])
                        self.answered += 1
                    except Exception as error:
                        self.failures.append(f"{type(error).__name__}: {error}")
                    await asyncio.sleep(_PAUSE_S)

            await asyncio.gather(*(one() for _ in range(_CLIENTS)))
