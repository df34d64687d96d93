"""What a system offers to the Triton boundary, and what the boundary gives it. Nothing of Triton in it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidal.metrics import Metrics
from tidal.requests import PendingRequest


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What a service is started with.

    `outputs` are the names of the outputs that the model's config declares. `failed` is to be called by any thread of
    the service that ends by an exception: the boundary then answers what is outstanding and starts a fresh service.
    """

    model: str
    version: int
    model_dir: Path
    version_dir: Path
    outputs: frozenset[str]
    metrics: Metrics
    log: logging.Logger
    failed: Callable[[BaseException], None]

    def start_thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """Start a daemon thread whose failure is reported through `failed`."""

        def guarded() -> None:
            try:
                run()
            except BaseException as error:
                self.failed(error)

        thread = threading.Thread(target=guarded, name=f"{self.model}-{name}", daemon=True)
        thread.start()
        return thread


class Service(Protocol):
    """A running system: accepts requests on one thread, answers them on its own."""

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Take over requests; returns soon. One may be answered at once, for example when it is invalid."""

    def close(self, timeout_s: float) -> None:
        """Answer what was taken over, within `timeout_s` seconds, then stop every thread."""
