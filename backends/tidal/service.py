"""What a system offers to the Triton boundary, and what the boundary gives it. Nothing of Triton in it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidal.errors import InvalidArgument, Unavailable
from tidal.metrics import Metrics
from tidal.requests import Array, PendingRequest

# For `ModelCall`: the newest version of the model that serves.
NEWEST = -1


class ModelUnavailable(Unavailable):
    """Another model of the server cannot run a request now, but may soon.

    It is being loaded or unloaded, or the version is not there, and the request was not run; or its process has died,
    perhaps of this request.
    """

    def __init__(self, message: str, *, died: bool) -> None:
        super().__init__(message)
        self.died = died


class ModelCall(Protocol):
    """Asks another model of the same server; from any thread, which waits for the answer."""

    def __call__(
        self,
        model: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        *,
        version: int,
        latency_ms: float | None = None,
        task: str | None = None,
    ) -> dict[str, Array]:
        """Run one request.

        Args:
            model: the model's name.
            inputs: arrays by input name, batch axis included.
            outputs: names of the outputs to give.
            version: the model's version, or NEWEST.
            latency_ms: what remains of the query's deadline, in milliseconds above 0.
            task: of the model, that the query belongs to.

        Returns:
            Arrays by output name, which the caller may keep.

        Raises:
            ModelUnavailable: the model cannot run it now.
            TidalError: the model's own error.
        """


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What a service is started with.

    `outputs` are the names of the outputs that the model's config declares. `call_model` asks other models of the same
    server. `failed` is to be called by any thread of
    the service that ends by an exception: the boundary then answers what is outstanding and starts a fresh service.
    """

    model: str
    version: int
    model_dir: Path
    version_dir: Path
    outputs: frozenset[str]
    metrics: Metrics
    log: logging.Logger
    call_model: ModelCall
    failed: Callable[[BaseException], None]

    def check_outputs(self, given: Sequence[str]) -> None:
        """Hold the model's config to the outputs that the model gives.

        Raises:
            InvalidArgument: config.pbtxt declares another one.
        """
        for name in sorted(self.outputs.difference(given)):
            message = f"config.pbtxt declares the output '{name}', which this model does not give"
            raise InvalidArgument(f"{message}; it gives {', '.join(given)}")

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
