"""Models of the `arlo` backend inside another model's process, which hands them tokens and gets answers in batches."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from tidal.access_log.record import RequestRecord
from tidal.arlo.loading import load_polymorphic
from tidal.arlo.manifest import load_arlo_manifest
from tidal.arlo.parameters import ArloParameters
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.errors import Internal, InvalidArgument, TidalError
from tidal.metrics import Metrics
from tidal.options import RequestOptions
from tidal.requests import Array, PendingRequest
from tidal.service import Service, ServiceContext
from tidal.serving.endings import model_stops

Owner = TypeVar("Owner")
_NO_DEADLINE = RequestOptions()


class LocalService(Service, Protocol):
    """A service that accepts tokens."""

    def submit_tokens(
        self, requests: Sequence[tuple[PendingRequest, Sequence[TokenRow]]], *, wait: bool = False
    ) -> None:
        """Queue requests that are tokenised, each with its rows; with `wait`, the caller may wait for them shortly."""


class StartLocal(Protocol):
    """Starts a service on open engines, also after a failure."""

    def __call__(self, context: ServiceContext, replied: Callable[[], None], /) -> LocalService:
        """Start a service that calls `replied` after each series of replies, in the thread that replied."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A version of a model with open engines, whose inputs have up to `max_length` tokens."""

    name: str
    version: int
    max_length: int
    outputs: frozenset[str]
    start: StartLocal


def load_embedded(version_dir: Path, name: str, log: logging.Logger) -> LoadedModel:
    """Open a polymorphic model's published version in this process.

    Args:
        version_dir: Folder of the version.
        name: Name of the model, for its log messages.
        log: Logger of the model.

    Raises:
        InvalidArgument: The manifest does not match the files, this device or the engine library.
    """
    manifest = load_arlo_manifest(version_dir)
    outputs = frozenset(manifest.engine_outputs)
    version = int(version_dir.name)
    context = ServiceContext(
        name, version, version_dir.parent, version_dir, outputs, Metrics("arlo"), log, _no_models, failed=_ignore
    )
    return LoadedModel(name, version, manifest.max_length, outputs, load_polymorphic(context, ArloParameters()))


class EmbeddedCall(Generic[Owner]):
    """Queries for an embedded model, as a `PendingRequest` that ends once: with outputs, an error, or abandoned.

    Args:
        owner: Caller's state, returned unchanged.
        rows: Tokens of each query.
        wanted: Names of the requested outputs.
        deadline: Latest `time.monotonic()` for an answer, in seconds; None for none.
        cancelled: Whether nobody needs the answer any more; asked before a call runs that has waited for long.

    Attributes:
        owner: Caller's state, returned unchanged.
        outputs: Arrays by output name once the model has answered.
        error: Why the model has not answered; None without a failure.
        record: Start and end of its execution.
    """

    request_id = ""
    inputs: Mapping[str, Array] = {}

    __slots__ = (
        "__weakref__",
        "_cancelled",
        "_models",
        "_once",
        "arrival",
        "deadline",
        "error",
        "outputs",
        "owner",
        "record",
        "tokens",
        "wanted",
    )

    def __init__(
        self,
        owner: Owner,
        rows: Sequence[TokenRow],
        wanted: frozenset[str],
        deadline: float | None,
        cancelled: Callable[[], bool],
    ) -> None:
        self.owner = owner
        self.tokens = rows
        self.wanted = wanted
        self.arrival = time.monotonic()
        self.deadline = deadline
        self.record = RequestRecord("", self.arrival)
        self.outputs: Mapping[str, Array] | None = None
        self.error: TidalError | None = None
        self._cancelled = cancelled
        self._once = threading.Lock()
        self._models: EmbeddedModels[Owner] | None = None

    @property
    def rows(self) -> int:
        """Number of queries."""
        return len(self.tokens)

    @property
    def options(self) -> RequestOptions:
        """Options with the deadline."""
        if self.deadline is None:
            return _NO_DEADLINE
        return RequestOptions(latency_ms=max((self.deadline - self.arrival) * 1e3, 0.001))

    @property
    def answered(self) -> bool:
        """Whether the call has ended."""
        return self._once.locked()

    def wants(self, output: str) -> bool:
        """Whether this output was requested."""
        return output in self.wanted

    def cancelled(self) -> bool:
        """Whether nobody needs the answer any more."""
        return self._cancelled()

    def reply(self, outputs: Mapping[str, Array], *, partial: bool = False) -> None:
        """End the call with outputs."""
        if self._once.acquire(blocking=False):
            self.outputs = outputs
            assert self._models is not None  # it was submitted
            self._models.collect(self)

    def fail(self, error: TidalError) -> None:
        """End the call with an error."""
        if self._once.acquire(blocking=False):
            self.error = error
            assert self._models is not None  # it was submitted
            self._models.collect(self)
            self._models.deliver()

    def submitted(self, models: EmbeddedModels[Owner]) -> None:
        """Set the collection that receives the call when its model answers or fails it."""
        self._models = models

    def abandon(self) -> bool:
        """End the call without an answer; return False if it has ended. A model that has not begun it skips it."""
        return self._once.acquire(blocking=False)


class EmbeddedModels(Generic[Owner]):
    """Models that run in this process; none of their calls holds a thread while it waits.

    Every submitted call ends once: `ended` receives it, answered or failed, or `abandon` returns True.

    Args:
        context: Context of the model whose process this is; a failing service fails it.
        models: Models to run.
        metrics: Metrics of each of them, by name.
        ended: Receives calls that have been answered or have failed, those of a batch together; called by threads of
            the models and by callers of `submit`.
    """

    def __init__(
        self,
        context: ServiceContext,
        models: Sequence[LoadedModel],
        metrics: Mapping[str, Metrics],
        ended: Callable[[Sequence[EmbeddedCall[Owner]]], None],
    ) -> None:
        self._failed = context.failed
        self._ended = ended
        self._lock = threading.Lock()
        self._open: set[EmbeddedCall[Owner]] = set()
        self._answered: deque[EmbeddedCall[Owner]] = deque()  # their receiver has not got them yet
        self._lengths = {(model.name, model.version): model.max_length for model in models}
        self._services = {
            (model.name, model.version): model.start(
                replace(
                    context, model=model.name, outputs=model.outputs, metrics=metrics[model.name], failed=self._fail
                ),
                self.deliver,
            )
            for model in models
        }

    def __contains__(self, model: tuple[str, int]) -> bool:
        """Whether a model, by name and version, runs here."""
        return model in self._services

    def submit(self, model: str, version: int, calls: Sequence[EmbeddedCall[Owner]], *, wait: bool = False) -> None:
        """Queue calls on a model; returns at once, or with `wait` after a bounded time.

        Args:
            model: Name of the model.
            version: Version of the model.
            calls: Calls that have not been submitted before; those that have been abandoned already are left out.
            wait: Whether this thread, which may not hold a lock, starts engines, waits for calls that are expected to
                end soon, and passes them on: that saves waking another thread.
        """
        longest = self._lengths[model, version]
        with self._lock:
            wanted = [call for call in calls if not call.answered]
            self._open.update(wanted)
        accepted: list[tuple[PendingRequest, Sequence[TokenRow]]] = []
        for call in wanted:
            call.submitted(self)
            length = max(len(row.ids) for row in call.tokens)
            if length > longest:
                call.fail(InvalidArgument(f"a query has {length} tokens; model '{model}' reads at most {longest}"))
            else:
                accepted.append((call, call.tokens))
        try:
            self._services[model, version].submit_tokens(accepted, wait=wait)
        except BaseException as error:  # it failed while it ran in this thread
            self._fail(error)

    def abandon(self, call: EmbeddedCall[Owner]) -> bool:
        """End a call that nobody waits for any more; return False if it has ended, and `ended` receives it."""
        abandoned = call.abandon()
        if abandoned:
            with self._lock:
                self._open.discard(call)
        return abandoned

    def collect(self, call: EmbeddedCall[Owner]) -> None:
        """Keep a call that was answered or failed until the next `deliver`, in the same thread."""
        self._answered.append(call)

    def deliver(self) -> None:
        """Pass the collected calls on."""
        calls: list[EmbeddedCall[Owner]] = []
        with contextlib.suppress(IndexError):  # another thread may have passed some on
            while True:
                calls.append(self._answered.popleft())
        if calls:
            with self._lock:
                self._open.difference_update(calls)
            self._ended(calls)

    def close(self, timeout_s: float) -> None:
        """Close the services within `timeout_s` seconds in total; fail the remaining calls."""
        until = time.monotonic() + timeout_s
        for service in self._services.values():
            service.close(max(0.0, until - time.monotonic()))
        self._fail_open(model_stops())

    def _fail(self, error: BaseException) -> None:
        self._fail_open(Internal(f"the model failed: {type(error).__name__}: {error}"))
        self._failed(error)

    def _fail_open(self, error: TidalError) -> None:
        with self._lock:
            calls = list(self._open)
        for call in calls:
            call.fail(error)
        self.deliver()  # replies that the thread which failed had not passed on


def _no_models(model: str, *_: Any, **__: Any) -> dict[str, Array]:
    raise Internal(f"a polymorphic model called model '{model}'")


def _ignore(error: BaseException) -> None:
    """Ignore failures while opening: no service runs yet."""
