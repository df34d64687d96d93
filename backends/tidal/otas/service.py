"""The `otas` service: reads images, and runs what waits in the batches and at the γ that its policy chooses."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, cast

from tidal.errors import Cancelled, Internal, TidalError, Unavailable
from tidal.otas.images import FloatArray, ImageDecoder
from tidal.otas.jobs import OUTPUTS, Job, Row, RowAnswer, batch_inputs, batch_logits, reply
from tidal.otas.library import OtasLibrary
from tidal.otas.metrics import OtasMetrics, Outcome
from tidal.otas.policies import Batch, OtasPolicy, Query
from tidal.otas.reading import read_images
from tidal.otas.tasks import OtasTask
from tidal.requests import PendingRequest
from tidal.service import ServiceContext
from tidal.tasks.intake import LEAVING, Intake
from tidal.tasks.lease import Lease

# Asking whether a client has gone costs a call to the server process: not worth it for a query that hardly waited.
_CHECK_CANCELLED_AFTER_S = 0.05

# How fast the time that answers take lately follows that of each batch.
_STEP = 0.1

# A batch that ran or failed, and what the policy is to be told of it.
_Ran = tuple[Batch, float | None]


class Transformer(Protocol):
    """Runs batches, one at a time; see `tidal.otas.runner.OtasRunner.run`."""

    def __call__(self, gamma: int, pixel_values: FloatArray, prompts: FloatArray | None) -> FloatArray:
        """Features [images, width] of pixels [images, channels, height, width], prompts [images, layers, γ, width]."""


class OtasService:
    """An intake, a thread that runs batches, and one that answers.

    Images are decoded, and tasks loaded, while a batch runs. Whenever the engine is free and something waits, the
    policy says what runs next and whom to give up.

    Args:
        context: what the service is started with.
        run: the model.
        decoder: of encoded images.
        shape: channels, height and width of the images that the model sees.
        library: the model's tasks; the service's own from now on.
        policy: decides; the service's own from now on.
        accuracies: by task and γ, as the policy looks them up; the service puts in the tasks that it has queries of.
        default_latency_s: deadline of queries that name none, seconds after arrival.
        readers: threads that decode.

    Raises:
        InvalidArgument: config.pbtxt declares an output that the model does not give.
    """

    def __init__(
        self,
        context: ServiceContext,
        run: Transformer,
        decoder: ImageDecoder,
        shape: tuple[int, int, int],
        library: OtasLibrary,
        policy: OtasPolicy,
        accuracies: dict[str, Mapping[int, float]],
        *,
        default_latency_s: float,
        readers: int,
    ) -> None:
        context.check_outputs(OUTPUTS)
        self._transformer = run
        self._decoder = decoder
        self._shape = shape
        self._policy = policy
        self._accuracies = accuracies
        self._default_latency_s = default_latency_s
        self._metrics = OtasMetrics(context.metrics)
        self._changed = threading.Condition()
        self._draining = False  # nothing more comes
        self._ended = False  # nothing is run any more
        self._answering_s = 0.0  # between the end of a batch and the last of its answers, lately
        self._answers: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._runner = context.start_thread("runner", self._work)
        self._responder = context.start_thread("responder", self._respond)
        self._intake = Intake(
            context, library, self._metrics, self._read, self._admit, self._last_admitted, readers=readers
        )

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Hand requests to the threads that read them; does not wait."""
        if not self._intake.take(requests):
            for request in requests:
                request.fail(Unavailable(LEAVING))

    def close(self, timeout_s: float) -> None:
        """Finish what waits, then end the threads; rows that are left after `timeout_s` stay unanswered."""
        until = time.monotonic() + timeout_s
        self._intake.stop()
        self._runner.join(max(0.0, until - time.monotonic()))
        self._end()
        self._answers.put(None)
        self._responder.join(max(0.0, until - time.monotonic()))
        self._intake.close(max(0.0, until - time.monotonic()))

    def _read(self, request: PendingRequest, task: str) -> Job:
        return Job(request, task, read_images(request.inputs, self._decoder, self._shape))

    def _admit(self, job: Job, lease: Lease[OtasTask]) -> bool:
        with self._changed:
            if self._ended:
                return False
            now = time.monotonic()
            self._accuracies[job.task] = lease.handle.accuracy
            try:
                for row in job.rows(lease, self._default_latency_s, 2 * self._answering_s):
                    self._policy.add(row, now)
            except BaseException:
                self._take_out(job)
                job.settle()
                raise
            self._metrics.waiting.set(len(self._policy))
            if self._policy.can_start:
                self._changed.notify()
        return True

    def _last_admitted(self) -> None:
        with self._changed:
            self._draining = True
            self._changed.notify()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._policy.clear()
            self._changed.notify()

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException:
            # The boundary answers what is outstanding and starts a fresh service.
            self._end()
            raise

    def _serve(self) -> None:
        ran: _Ran | None = None
        while True:
            with self._changed:
                if ran is not None:
                    self._policy.finished(*ran)
                    ran = None
                if not len(self._policy):
                    if self._ended or self._draining:
                        return
                    self._changed.wait()
                    continue
                now = time.monotonic()
                decision = self._policy.next(now)
                self._metrics.decision.observe(time.monotonic() - now)
                evicted = self._with_siblings(decision.evicted)
                self._metrics.waiting.set(len(self._policy))
            for job in evicted:
                self._settle(job, "evicted")  # before the batch runs, which may hold another query of the job
            if evicted:
                self._answers.put(partial(self._refuse, evicted, now))
            if decision.batch is not None:
                ran = decision.batch, self._run(decision.batch, now)

    def _with_siblings(self, evicted: Sequence[Query]) -> list[Job]:
        """The jobs of evicted queries; their other queries leave too, since one answer is for all."""
        jobs = list(dict.fromkeys(cast(Row, query).job for query in evicted))
        for job in jobs:
            self._take_out(job)
        return jobs

    def _take_out(self, job: Job) -> None:
        """Let none of a job's queries wait any more; with the lock held."""
        for row in job.queries:
            self._policy.remove(row)

    def _run(self, batch: Batch, now: float) -> float | None:
        """Run a batch; its seconds, None where it failed or some of its queries were not run."""
        taken = cast(Sequence[Row], batch.queries)
        rows = [row for row in taken if self._still_wanted(row, now)]
        if not rows:
            return None
        try:
            features = self._transformer(batch.gamma, *batch_inputs(rows, batch.gamma))
        except Exception as error:
            answer = error if isinstance(error, TidalError) else Internal(f"the engine failed: {error}")
            for job in dict.fromkeys(row.job for row in rows):
                self._give_up(job, "failed", answer)
            return None
        ended = time.monotonic()
        self._answers.put(partial(self._answer, rows, batch.gamma, now, ended, features))
        self._metrics.ran(batch, rows, now, ended - now)
        return ended - now if len(rows) == len(taken) else None

    def _still_wanted(self, row: Row, now: float) -> bool:
        job = row.job
        if job.settled:
            return False
        if job.request.answered:
            self._give_up(job, "evicted")
            return False
        if now - row.arrival > _CHECK_CANCELLED_AFTER_S and job.request.cancelled():
            self._give_up(job, "cancelled", Cancelled("the client cancelled the request while it waited"))
            return False
        return True

    def _respond(self) -> None:
        while (answer := self._answers.get()) is not None:
            answer()

    def _answer(self, rows: Sequence[Row], gamma: int, started: float, ended: float, features: FloatArray) -> None:
        for row, logits in zip(rows, batch_logits(rows, gamma, features), strict=True):
            job = row.job
            if job.request.record is not None:
                job.request.record.ran(started, ended)
            if job.finish(row.index, RowAnswer(logits, gamma, started - row.arrival)):
                reply(job, row.of.labels)
                self._settle(job, "in_time" if time.monotonic() <= job.deadline else "late")
        self._answering_s += _STEP * (time.monotonic() - ended - self._answering_s)

    def _refuse(self, evicted: Sequence[Job], now: float) -> None:
        for job in evicted:
            arrival = job.request.arrival
            waited, allowed = (now - arrival) * 1e3, (job.deadline - arrival) * 1e3
            error = f"the deadline of {allowed:g} ms cannot be met: {waited:.0f} ms have passed in the queue"
            job.request.fail(Unavailable(error))

    def _give_up(self, job: Job, outcome: Outcome, error: TidalError | None = None) -> None:
        with self._changed:
            self._take_out(job)
        self._settle(job, outcome)
        if error is not None:
            job.request.fail(error)

    def _settle(self, job: Job, outcome: Outcome) -> None:
        """A job has come to its end; count what became of its queries."""
        job.settle()
        self._metrics.settled(outcome, len(job.queries), job.utility)
