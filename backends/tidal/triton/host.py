"""What stands between Triton and a system's service: acceptance, exactly one answer each, and survival.

Every accepted request gets exactly one final answer, whatever fails short of the process being killed:

- the service raises, or one of its threads ends by an exception: everything outstanding is answered INTERNAL with the
  cause, and a fresh service is started (at once, then with growing pauses while it keeps failing);
- a request object is dropped: its sender is answered INTERNAL;
- a deadline passes, or `answer_timeout_s` does, while nobody answers (an engine that hangs cannot be interrupted, but
  its client need not hang with it, and Triton ends a model only after its last answer): UNAVAILABLE;
- the model is unloaded or the server ends: the service drains, what is left is answered UNAVAILABLE.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from tidal.errors import Internal, InvalidArgument, TidalError, Unavailable
from tidal.metrics import Metrics
from tidal.service import Service, ServiceContext
from tidal.triton.acceptance import Acceptance
from tidal.triton.housekeeping import Housekeeping
from tidal.triton.logs import model_logger
from tidal.triton.metrics import MetricsPublisher
from tidal.triton.outstanding import Outstanding
from tidal.triton.parameters import parse_parameters
from tidal.triton.request import TritonRequest

_System = TypeVar("_System", bound=BaseModel)
Load = Callable[[ServiceContext, _System], Callable[[ServiceContext], Service]]

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
# A service that has run this long has recovered: its next failure is answered by an immediate restart again.
_HEALTHY_S = 60.0


class BackendHost:
    """Runs one model of one system inside Triton's Python stub.

    Args:
        args: what Triton passes to `initialize`.
        system: the system's name, as in its metrics `tidal_<system>_*`.
        parameters: the system's own parameters in config.pbtxt.
        load: called once with the context and the parameters; loads engines and returns what starts a service. That
            is called now, and again after a failure, so what is loaded once is kept.

    Raises:
        InvalidArgument: the model's config is not acceptable, so that the load fails with the reason.
    """

    def __init__(self, args: dict[str, str], *, system: str, parameters: type[_System], load: Load[_System]) -> None:
        config = json.loads(args["model_config"])
        name, version = args["model_name"], int(args["model_version"])
        _one_instance(config)
        self._parameters, own = parse_parameters(config.get("parameters", {}), parameters)
        self._log = model_logger(name, version)
        self._metrics = Metrics(system)
        self._lock = threading.Lock()
        self._generation = 0
        self._failures = 0
        self._started = 0.0
        self._closing = False
        self._service: Service | None = None
        self._cause = ""
        outputs = frozenset(output["name"] for output in config["output"])
        folder = Path(args["model_repository"])
        self._context = ServiceContext(
            name, version, folder, folder / str(version), outputs, self._metrics, self._log, failed=lambda error: None
        )
        self._start = load(self._context, own)
        self._restarts = self._metrics.counter("service_restarts_total", "Services started anew after a failure")
        self._outstanding = Outstanding(self._metrics)
        self._housekeeping = Housekeeping(
            MetricsPublisher(self._metrics, {"model": name, "version": str(version)}),
            self._outstanding,
            answer_timeout_s=self._parameters.answer_timeout_s,
            log=self._log,
        )
        self._acceptance = Acceptance(
            outputs,
            batched=config["max_batch_size"] > 0,
            max_queue_size=self._parameters.max_queue_size,
            outstanding=self._outstanding,
            orphaned=self._housekeeping.orphaned,
        )
        self._begin()
        self._housekeeping.start()

    def execute(self, requests: Sequence[Any]) -> None:
        """Take requests over; every one is answered later through its own sender."""
        accepted: list[TritonRequest] = []
        for raw in requests:
            sender = raw.get_response_sender()
            try:
                accepted.append(self._acceptance.accept(raw, sender))
            except TidalError as error:
                self._acceptance.refuse(sender, error)
            except Exception as error:
                self._acceptance.refuse(sender, Internal(f"the request could not be read: {error}"))
        if not accepted:
            return
        for request in accepted:
            if request.deadline is not None:
                self._housekeeping.watch(request)
        service, generation = self._service, self._generation
        if service is None:
            for request in accepted:
                request.fail(Unavailable(f"the model is restarting after a failure ({self._cause}); try again"))
            return
        try:
            service.submit(accepted)
        except BaseException as error:
            self._failed(generation, error)

    def finalize(self) -> None:
        """Drain, answer what is left, publish the last metrics."""
        with self._lock:
            self._closing = True
            self._generation += 1
            service, self._service = self._service, None
        if service is not None:
            try:
                service.close(self._parameters.drain_timeout_s)
            except Exception:
                self._log.exception("the service did not close")
        self._outstanding.fail_all(Unavailable("the model was unloaded before it answered; send the request again"))
        self._housekeeping.stop()

    def _begin(self) -> None:
        """Start a service under a new generation.

        Raises:
            Exception: whatever hindered it.
        """
        with self._lock:
            if self._closing:
                return
            self._generation += 1
            failed = partial(self._failed, self._generation)
        service = self._start(dataclasses.replace(self._context, failed=failed))
        self._started = time.monotonic()
        self._service = service

    def _failed(self, generation: int, error: BaseException) -> None:
        """A service of this generation has failed: answer what is outstanding and start another."""
        with self._lock:
            if generation != self._generation or self._closing:
                return
            self._generation += 1
            old, self._service = self._service, None
            self._cause = f"{type(error).__name__}: {error}"
            if time.monotonic() - self._started > _HEALTHY_S:
                self._failures = 0
            self._failures += 1
            pause = 0.0 if self._failures == 1 else min(_FIRST_PAUSE_S * 2 ** (self._failures - 2), _LONGEST_PAUSE_S)
        self._log.error("the service failed: %s", self._cause, exc_info=error)
        self._outstanding.fail_all(Internal(f"the model failed: {self._cause}"))
        self._restarts.inc()
        self._housekeeping.later(pause, partial(self._restart, old))

    def _restart(self, old: Service | None) -> None:
        if old is not None:
            try:
                old.close(0.0)
            except Exception:
                self._log.exception("the failed service did not close")
        try:
            self._begin()
        except BaseException as error:
            self._failed(self._generation, error)
        else:
            self._log.warning("a fresh service runs (failure %d: %s)", self._failures, self._cause)


def _one_instance(config: dict[str, Any]) -> None:
    """Several instances would be blind to each other's queues, and removing one in place loses its requests."""
    count = sum(
        max(1, int(group.get("count", 1))) * max(1, len(group.get("gpus", [])))
        for group in config.get("instance_group", [])
    )
    if count > 1:
        raise InvalidArgument(
            f"instance_group asks for {count} instances; accepted is 1: workers are threads inside one instance"
        )
