"""Boundary between Triton and a system's service: accepts requests, guarantees one answer each, restarts services.

Answers that arrive within a bounded time are returned by `execute` as a list, which is cheaper than sending each (see
`tidal.triton.answer_list`); later ones are sent by the thread that made them.

Every accepted request gets exactly one final answer unless the process is killed:

- The service raises, or an exception ends one of its threads: open requests are answered INTERNAL with the cause, and
  a new service is started, at once and then with growing pauses while it keeps failing.
- A request object is dropped: it is answered INTERNAL.
- A deadline or `answer_timeout_s` passes without an answer: UNAVAILABLE. An engine that hangs cannot be interrupted,
  but its clients need not wait for it, and Triton unloads a model only after its last answer.
- The model is unloaded or the server shuts down: the service drains, and the rest is answered UNAVAILABLE.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import triton_python_backend_utils as pb_utils
from pydantic import BaseModel

from tidal.access_log.writer import open_access_log
from tidal.errors import InvalidArgument, Unavailable
from tidal.metrics import Metrics
from tidal.service import Service, ServiceContext
from tidal.tracing.tracing import open_tracing
from tidal.triton.acceptance import Acceptance
from tidal.triton.answer_list import AnswerList, ReturnWindow
from tidal.triton.bls import call_model
from tidal.triton.housekeeping import Housekeeping
from tidal.triton.keeper import ServiceKeeper
from tidal.triton.logs import model_logger
from tidal.triton.metrics import MetricsPublisher
from tidal.triton.outstanding import Outstanding
from tidal.triton.parameters import parse_parameters
from tidal.triton.request import RequestHooks
from tidal.triton.reused_tensors import ReusedTensors

_System = TypeVar("_System", bound=BaseModel)
Load = Callable[[ServiceContext, _System], Callable[[ServiceContext], Service]]
# Seconds for the threads of an idle service to end.
_END_S = 2.0


class BackendHost:
    """Runs one model of one system inside Triton's Python stub.

    Args:
        args: Arguments of Triton's `initialize`.
        system: Name of the system, as in its metrics `tidal_<system>_*`.
        parameters: Model of the system's own parameters in config.pbtxt.
        load: Loads the engines, once, and returns a function that starts a service. That function is called now and
            again after each failure, with the same engines.

    Raises:
        InvalidArgument: The model's config is not accepted; its load fails with this reason.
    """

    def __init__(self, args: dict[str, str], *, system: str, parameters: type[_System], load: Load[_System]) -> None:
        config = json.loads(args["model_config"])
        name, version = args["model_name"], int(args["model_version"])
        _check_one_instance(config)
        self._parameters, own = parse_parameters(config.get("parameters", {}), parameters)
        self._log = model_logger(name, version)
        self._metrics = Metrics(system)
        types = {each["name"]: each["data_type"] for each in config["output"]}
        outputs = {name: np.dtype(pb_utils.triton_string_to_numpy(of)) for name, of in types.items()}
        folder = Path(args["model_repository"])
        # Otherwise a call brings one request, and a wait in it would keep the service from seeing two at once.
        self._grouped = "dynamic_batching" in config
        context = ServiceContext(
            name,
            version,
            folder,
            folder / str(version),
            frozenset(outputs),
            self._metrics,
            self._log,
            call_model,
            failed=lambda error: None,
            grouped=self._grouped,
        )
        start = load(context, own)
        dropped = self._metrics.counter("access_log_dropped_lines_total", "Lines of the request log not written")
        self._access_log = open_access_log(name, version, self._log, dropped)
        self._tracing = open_tracing(system, name, version, self._log)
        self._outstanding = Outstanding(self._metrics, self._access_log, self._tracing)
        self._housekeeping = Housekeeping(
            MetricsPublisher(self._metrics, {"model": name, "version": str(version)}),
            self._outstanding,
            answer_timeout_s=self._parameters.answer_timeout_s,
            log=self._log,
        )
        self._tensors = ReusedTensors(pb_utils.Tensor)
        hooks = RequestHooks(
            outputs,
            self._outstanding.answering,
            self._outstanding.finished,
            self._housekeeping.orphaned,
            self._tensors,
        )
        self._acceptance = Acceptance(
            hooks,
            batched=config["max_batch_size"] > 0,
            max_queue_size=self._parameters.max_queue_size,
            outstanding=self._outstanding,
        )
        # Answers of a decoupled model are always sent.
        self._window = None if config.get("model_transaction_policy", {}).get("decoupled") else ReturnWindow()
        self._keeper = ServiceKeeper(context, start, self._outstanding.fail_all)
        self._housekeeping.start()
        # Objects that live as long as the model need no further collection: a full one takes 0.1 s with them.
        gc.collect()
        gc.freeze()

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Accept requests, and return the answers that arrive soon; later ones are sent on their own.

        Returns:
            Answers by request, None for each that is sent later; None for a decoupled model.
        """
        answers = None if self._window is None else AnswerList(len(requests))
        arrival = time.monotonic()
        accepted = self._acceptance.accept(requests, answers, arrival)
        deadline = min((request.deadline for request in accepted if request.deadline is not None), default=None)
        if deadline is not None:
            self._housekeeping.watch(deadline)
        if accepted:
            self._keeper.submit(accepted)
        del accepted  # a request that its service drops is answered when the last reference is gone
        if answers is None or self._window is None:
            return None
        wait_s = self._window.wait_s(answers.missing) if self._grouped and answers.missing else 0.0
        collected = answers.collect(wait_s)
        if wait_s:
            self._window.waited(not answers.missing)
        if answers.endings:
            self._outstanding.returning(answers.endings)
        return collected

    def finalize(self) -> None:
        """End the service, answer open requests, and publish the metrics a last time.

        Triton calls this after the last answer (see `answer_timeout_s`), so only threads are left to end; one that
        hangs in an engine is left behind.
        """
        self._keeper.close(_END_S)
        self._outstanding.fail_all(Unavailable("the model was unloaded before it answered; send the request again"))
        self._housekeeping.stop()
        self._tensors.clear()
        if self._access_log is not None:
            self._access_log.close()
        if self._tracing is not None:
            self._tracing.close()


def _check_one_instance(config: dict[str, Any]) -> None:
    """Refuse several instances: they would not see each other's queues, and removing one would lose its requests."""
    count = sum(
        max(1, int(group.get("count", 1))) * max(1, len(group.get("gpus", [])))
        for group in config.get("instance_group", [])
    )
    if count > 1:
        raise InvalidArgument(
            f"instance_group has {count} instances; accepted is 1, since workers are threads of one instance. "
            "Write `instance_group [ { count: 1 kind: KIND_CPU } ]`, also for models that run on a GPU"
        )
