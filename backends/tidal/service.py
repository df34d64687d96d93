"""Contract between a system and the Triton boundary: `Service` and `ServiceContext`. Independent of Triton."""

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

# Version for `ModelCall`: the newest version that is ready.
NEWEST = -1


class ModelUnavailable(Unavailable):
    """Another model of the same server cannot run a request now, but may soon.

    Either the model is being loaded or unloaded or lacks the version, and the request was not run, or its process has
    died, possibly because of this request.

    Args:
        message: Text of the error.
        died: Whether the model's process has died.
    """

    def __init__(self, message: str, *, died: bool) -> None:
        super().__init__(message)
        self.died = died


class ModelCall(Protocol):
    """Calls another model of the same server; any thread may call it, and waits for the answer."""

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
            model: Name of the model.
            inputs: Arrays by input name, including the batch axis.
            outputs: Names of the requested outputs.
            version: Version of the model, or `NEWEST`.
            latency_ms: Time that remains until the query's deadline, in milliseconds, above 0; None for no deadline.
            task: Name of the model's task that the query belongs to; None for none.

        Returns:
            Arrays by output name; the caller may keep them.

        Raises:
            ModelUnavailable: The model cannot run the request now.
            TidalError: The model answered with this error.
        """


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What a service gets at its start.

    Attributes:
        model: Name of the model.
        version: Version of the model.
        model_dir: Folder of the model in the repository.
        version_dir: Folder of the version.
        outputs: Names of the outputs that config.pbtxt declares.
        metrics: Metrics of the model.
        log: Logger of the model.
        call_model: Calls another model of the same server.
        failed: Reports an exception that ended a thread of the service: the boundary answers the open requests and
            starts a new service.
        grouped: Whether requests that arrive during a submission are passed on together, as by dynamic batching.
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
    grouped: bool = True

    def check_outputs(self, given: Sequence[str]) -> None:
        """Check that config.pbtxt declares only outputs that the model gives.

        Args:
            given: Names of the outputs that the model gives.

        Raises:
            InvalidArgument: config.pbtxt declares another output.
        """
        for name in sorted(self.outputs.difference(given)):
            message = f"config.pbtxt declares the output '{name}', which this model does not give"
            raise InvalidArgument(f"{message}; it gives {', '.join(given)}")

    def start_thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """Start a daemon thread whose exceptions are reported to `failed`.

        Args:
            name: End of the thread's name, after the model's.
            run: Function that the thread runs.
        """

        def guarded() -> None:
            try:
                run()
            except BaseException as error:
                self.failed(error)

        thread = threading.Thread(target=guarded, name=f"{self.model}-{name}", daemon=True)
        thread.start()
        return thread


class Service(Protocol):
    """A running system: accepts requests on the caller's thread, answers them on its own threads."""

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Accept requests and return soon; a request may be answered at once, for example if it is invalid."""

    def close(self, timeout_s: float) -> None:
        """Answer the accepted requests within `timeout_s` seconds, then end every thread."""
