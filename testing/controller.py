"""`tidal controller` as a subprocess, and traffic of chosen lengths."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from testing.serving import TIDAL
from testing.waiting import until
from tidal_client import AsyncClient

# Number of clients, and their pause between requests: a load well below the instances' capacity.
_CLIENTS, _PAUSE_S = 4, 0.02


class RunningController:
    """A running controller and the JSON events that it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def of(self, event: str, **facts: Any) -> list[dict[str, Any]]:
        """Return the events of a kind, in order."""
        return [
            each
            for each in list(self.events)
            if each["event"] == event and all(each.get(name) == value for name, value in facts.items())
        ]

    def wait_for(self, event: str, count: int = 1, seconds: float = 60, **facts: Any) -> bool:
        """Wait until `count` events of a kind have been printed; return whether that happens in time."""
        return until(lambda: len(self.of(event, **facts)) >= count or self.process.poll() is not None, seconds) and (
            len(self.of(event, **facts)) >= count
        )

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
