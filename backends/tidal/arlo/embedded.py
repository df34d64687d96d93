"""Models of the `arlo` backend inside another model's process, called like models of the server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from tidal.arlo.loading import load_polymorphic
from tidal.arlo.manifest import load_arlo_manifest
from tidal.arlo.parameters import ArloParameters
from tidal.errors import Internal, TidalError, Unavailable
from tidal.metrics import Metrics
from tidal.options import RequestOptions
from tidal.requests import Array, PendingRequest
from tidal.service import Service, ServiceContext


class LocalService(Service, Protocol):
    """A service that can run a request in the caller's thread."""

    def run_here(self, request: PendingRequest) -> None:
        """Queue a request; run it in the calling thread if it is first and a lane is free."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A version of a model with open engines; `start` starts a service on it, also after a failure."""

    name: str
    version: int
    outputs: frozenset[str]
    start: Callable[[ServiceContext], LocalService]


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
    outputs = frozenset({"logits", *(output.name for output in manifest.extra_outputs)})
    version = int(version_dir.name)
    context = ServiceContext(
        name, version, version_dir.parent, version_dir, outputs, Metrics("arlo"), log, _no_models, failed=_ignore
    )
    return LoadedModel(name, version, outputs, load_polymorphic(context, ArloParameters()))


class EmbeddedModels:
    """A `ModelCall` that runs some models in this process and calls all others on the server.

    Args:
        context: Context of the model whose process this is; a failing service fails it.
        models: Models to run in this process.
        metrics: Metrics of each of them, by name.
    """

    def __init__(self, context: ServiceContext, models: Sequence[LoadedModel], metrics: Mapping[str, Metrics]) -> None:
        self._others = context.call_model
        self._pending: set[_Call] = set()
        self._lock = threading.Lock()
        self._failed = context.failed
        self._services = {
            (model.name, model.version): model.start(
                replace(
                    context, model=model.name, outputs=model.outputs, metrics=metrics[model.name], failed=self._fail
                )
            )
            for model in models
        }

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
        """Run one request and return its outputs; see `tidal.service.ModelCall`."""
        service = self._services.get((model, version))
        if service is None:
            return self._others(model, inputs, outputs, version=version, latency_ms=latency_ms, task=task)
        call = _Call(inputs, frozenset(outputs), latency_ms)
        with self._lock:
            self._pending.add(call)
        try:
            service.run_here(call)
            return call.wait()
        finally:
            with self._lock:
                self._pending.discard(call)

    def close(self, timeout_s: float) -> None:
        """Close the services within `timeout_s` seconds in total; fail the remaining calls."""
        until = time.monotonic() + timeout_s
        for service in self._services.values():
            service.close(max(0.0, until - time.monotonic()))
        self._fail_open(Unavailable("the model stops serving here; send the request again"))

    def _fail(self, error: BaseException) -> None:
        self._fail_open(Internal(f"the model failed: {type(error).__name__}: {error}"))
        self._failed(error)

    def _fail_open(self, error: TidalError) -> None:
        with self._lock:
            calls = list(self._pending)
        for call in calls:
            call.fail(error)


class _Call:
    """A `PendingRequest` from this process, with a wait for its response."""

    request_id = ""
    record = None  # the request log has the request that this call belongs to

    def __init__(self, inputs: Mapping[str, Array], wanted: frozenset[str], latency_ms: float | None) -> None:
        self.inputs = inputs
        self.wanted = wanted
        self.rows = len(next(iter(inputs.values())))
        self.options = RequestOptions(latency_ms=latency_ms)
        self.arrival = time.monotonic()
        self.deadline = None if latency_ms is None else self.arrival + latency_ms / 1e3
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._result: dict[str, Array] | TidalError | None = None

    @property
    def answered(self) -> bool:
        return self._result is not None

    def wants(self, output: str) -> bool:
        return output in self.wanted

    def cancelled(self) -> bool:
        return False

    def reply(self, outputs: Mapping[str, Array]) -> None:
        self._finish({name: outputs[name] for name in self.wanted})

    def fail(self, error: TidalError) -> None:
        self._finish(error)

    def wait(self) -> dict[str, Array]:
        self._done.wait()
        assert self._result is not None
        if isinstance(self._result, TidalError):
            raise self._result
        return self._result

    def _finish(self, result: dict[str, Array] | TidalError) -> None:
        with self._lock:
            if self._result is None:
                self._result = result
                self._done.set()


def _no_models(model: str, *_: Any, **__: Any) -> dict[str, Array]:
    raise Internal(f"a polymorphic model called model '{model}'")


def _ignore(error: BaseException) -> None:
    """Ignore failures while opening: no service runs yet."""
