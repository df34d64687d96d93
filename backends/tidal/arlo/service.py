"""The `arlo` service: reads requests, queues their rows by the policy, and answers from its workers."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tidal.arlo.metrics import ArloMetrics
from tidal.arlo.model import EncoderModel, TokenRow, open_model, probabilities, stack_rows
from tidal.arlo.parameters import ArloParameters
from tidal.arlo.policies import Batch, PolymorphicPolicy, Query
from tidal.arlo.reader import read_rows
from tidal.errors import Cancelled, Internal, InvalidArgument, TidalError, Unavailable
from tidal.requests import PendingRequest
from tidal.service import ServiceContext

Array = npt.NDArray[Any]
# Asking whether a client has gone costs a call to the server process: not worth it for a query that hardly waited.
_CHECK_CANCELLED_AFTER_S = 0.005


class _Job:
    """A request and the rows of it that are still to be answered."""

    def __init__(self, request: PendingRequest, rows: int) -> None:
        self.request = request
        self.results: list[dict[str, Array] | None] = [None] * rows
        self.failed = False
        self._left = rows
        self._lock = threading.Lock()

    def finish(self, row: int, result: dict[str, Array]) -> bool:
        """Keep a row's outputs; whether it was the last row."""
        self.results[row] = result
        with self._lock:
            self._left -= 1
            return self._left == 0


@dataclass(eq=False, slots=True)
class _Row(Query):
    """A query in the policy's queue, with what is needed to run and answer it."""

    tokens: TokenRow = field(kw_only=True)
    job: _Job = field(kw_only=True)
    index: int = field(kw_only=True)


class ArloService:
    """Polymorphic placement: one queue, and a worker for each batch that may run, and one more.

    A worker answers the queries that it ran while nothing waits. When more waits, it runs that at once, so that its
    engine does not stand still, and another thread answers; the one more takes what comes while a worker answers.
    """

    def __init__(self, context: ServiceContext, model: EncoderModel, parameters: ArloParameters) -> None:
        manifest = model.manifest
        self._model = model
        self._labels = np.array([label.encode() for label in manifest.labels], object)
        self._extra = {output.name: output.per_token for output in manifest.extra_outputs}
        for name in sorted(context.outputs - {"logits", "probabilities", "label", "max_length", *self._extra}):
            raise InvalidArgument(
                f"config.pbtxt declares the output '{name}', which this model does not give; remove it there, or "
                f"rebuild the model with `outputs: [logits, {name}]`"
            )
        self._metrics = ArloMetrics(context.metrics, [runtime.max_length for runtime in manifest.runtimes])
        self._policy = PolymorphicPolicy(
            [runtime.max_length for runtime in manifest.runtimes],
            manifest.profile,
            manifest.parallel,
            dynamic=manifest.runtimes[-1].dynamic,
            max_batch=min(runtime.max_batch for runtime in manifest.runtimes),
            service_weight=parameters.service_weight,
        )
        self._changed = threading.Condition()
        self._closing = False
        self._answers: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._workers = [
            context.start_thread(f"worker-{index}", self._work) for index in range(self._policy.most_running + 1)
        ]
        self._responder = context.start_thread("responder", self._respond)

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Read requests and queue their rows; one that cannot be read is answered here."""
        rows: list[_Row] = []
        for request in requests:
            try:
                rows.extend(self._read(request))
            except TidalError as error:
                request.fail(error)
            except Exception as error:  # one request must not cost the others their service
                request.fail(Internal(f"the request could not be read: {error}"))
        if not rows:
            return
        with self._changed:
            if self._closing:
                refused = {id(row.job): row.job for row in rows}
            else:
                refused = {}
                for row in rows:
                    self._policy.submit(row)
                self._metrics.waiting.set(len(self._policy))
                self._changed.notify(len(rows))
        for job in refused.values():
            job.request.fail(Unavailable("the model stops serving here; send the request again"))

    def close(self, timeout_s: float) -> None:
        """Finish what waits, then end the threads; rows that are left after `timeout_s` stay unanswered."""
        until = time.monotonic() + timeout_s
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.join(max(0.0, until - time.monotonic()))
        self._answers.put(None)
        self._responder.join(max(0.0, until - time.monotonic()))

    def _read(self, request: PendingRequest) -> list[_Row]:
        tokens = read_rows(request.inputs, self._model.tokenizer)
        job = _Job(request, len(tokens))
        for row in tokens:
            self._metrics.length(len(row.ids))
        return [
            _Row(len(row.ids), request.arrival, request.deadline, tokens=row, job=job, index=index)
            for index, row in enumerate(tokens)
        ]

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException:
            # The boundary answers what is outstanding and starts a fresh service: leave nothing for the others to run.
            with self._changed:
                self._closing = True
                self._policy.clear()
                self._changed.notify_all()
            raise

    def _serve(self) -> None:
        ran: Batch | None = None
        finished: list[_Job] = []
        while True:
            with self._changed:
                if ran is not None:
                    self._policy.finished(ran)
                    ran = None
                late, batch, now = self._next()
                # Others are woken for work only: a thread that wakes for nothing delays this one.
                if self._policy.can_start or self._closing:
                    self._changed.notify()
                if batch is None and not late and not finished:
                    if self._closing and not len(self._policy):
                        self._changed.notify_all()
                        return
                    self._changed.wait()
                    continue
            if batch is None:
                self._answer(finished)
            elif finished:
                self._answers.put(finished)
            finished = []
            self._refuse(late, now)
            if batch is not None:
                finished = self._run(batch, now)
                ran = batch

    def _respond(self) -> None:
        while (jobs := self._answers.get()) is not None:
            self._answer(jobs)

    def _next(self) -> tuple[list[_Row], Batch | None, float]:
        """Queries that are too late, the batch to start, and the moment that was decided for."""
        now = time.monotonic()
        late = cast(list[_Row], self._policy.expired(now))
        batch = self._policy.next_batch(now)
        self._metrics.waiting.set(len(self._policy))
        return late, batch, now

    def _refuse(self, late: Sequence[_Row], now: float) -> None:
        for row in late:
            if not row.job.failed:
                row.job.failed = True
                waited = (now - row.arrival) * 1e3
                row.job.request.fail(
                    Unavailable(
                        f"the deadline of {row.job.request.options.latency_ms:g} ms cannot be met: "
                        f"{waited:.0f} ms have passed in the queue"
                    )
                )

    def _run(self, batch: Batch, now: float) -> list[_Job]:
        """Run a batch; the requests that it completed."""
        rows = [row for row in cast(Sequence[_Row], batch.queries) if self._still_wanted(row, now)]
        if not rows:
            return []
        try:
            outputs = self._model.run(batch.lane, batch.runtime, [row.tokens for row in rows])
        except Exception as error:
            for row in rows:
                if not row.job.failed:
                    row.job.failed = True
                    row.job.request.fail(Internal(f"the engine failed: {error}"))
            return []
        runtime = self._model.manifest.runtimes[batch.runtime]
        self._metrics.ran(
            runtime, [row.length for row in rows], [now - row.arrival for row in rows], time.monotonic() - now
        )
        finished = []
        for i, row in enumerate(rows):
            result = {"logits": outputs["logits"][i], "max_length": np.array([runtime.max_length], np.int32)}
            for name, per_token in self._extra.items():
                result[name] = outputs[name][i, : row.length] if per_token else outputs[name][i]
            if row.job.finish(row.index, result):
                finished.append(row.job)
        return finished

    @staticmethod
    def _still_wanted(row: _Row, now: float) -> bool:
        job = row.job
        if job.failed or job.request.answered:
            return False
        if now - row.arrival > _CHECK_CANCELLED_AFTER_S and job.request.cancelled():
            job.failed = True
            job.request.fail(Cancelled("the client cancelled the request while it waited"))
            return False
        return True

    def _answer(self, jobs: Sequence[_Job]) -> None:
        for job in jobs:
            request, rows = job.request, cast(list[dict[str, Array]], job.results)
            logits = stack_rows(rows, "logits")
            outputs: dict[str, Array] = {"logits": logits}
            if request.wants("probabilities"):
                outputs["probabilities"] = probabilities(logits)
            if request.wants("label"):
                outputs["label"] = self._labels[logits.argmax(-1)][:, None]
            for name in ("max_length", *self._extra):
                if request.wants(name):
                    outputs[name] = stack_rows(rows, name)
            request.reply(outputs)


def load(context: ServiceContext, parameters: ArloParameters) -> Callable[[ServiceContext], ArloService]:
    """Open the published version once; what comes back starts a service on it, again after a failure.

    Raises:
        InvalidArgument: the version does not fit its files, this device, the engine library or the config.
    """
    model = open_model(context.version_dir, truncate=parameters.truncate)
    return lambda fresh: ArloService(fresh, model, parameters)
