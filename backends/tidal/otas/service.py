"""The `otas` service: reads images, and runs waiting queries in the batches and at the γ that its policy chooses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, cast

from tidal.errors import TidalError
from tidal.otas.images import FloatArray, ImageDecoder
from tidal.otas.library import OtasLibrary
from tidal.otas.metrics import OtasMetrics, Outcome
from tidal.otas.policies import Batch, OtasPolicy, Query
from tidal.otas.reading import read_images
from tidal.otas.rows import OUTPUTS, OtasRequest, OtasRow, ReadImages, RowResult, batch_inputs, batch_logits, reply
from tidal.otas.tasks import OtasTask
from tidal.requests import PendingRequest
from tidal.service import ServiceContext
from tidal.serving.endings import cancellation, failure, missed_in_queue, model_stops
from tidal.serving.threads import AnswerThread, join_until, remaining_s
from tidal.tasks.intake import Intake
from tidal.tasks.lease import Lease

# Weight of the newest batch in the moving average of the time that answers take.
_AVERAGING_STEP = 0.1

# A batch that has run, and its seconds; None where it failed or some of its queries were not run.
_Ran = tuple[Batch, float | None]


class Transformer(Protocol):
    """Runs batches, one at a time; see `tidal.otas.runner.OtasRunner.run`."""

    def __call__(self, gamma: int, pixel_values: FloatArray, prompts: FloatArray | None) -> FloatArray:
        """Return features [images, width].

        Args:
            gamma: The γ of the batch.
            pixel_values: Images, of shape [images, channels, height, width].
            prompts: Prompts, of shape [images, layers, γ, width]; None where γ is 0 or below.
        """


class OtasService:
    """An intake, a thread that runs batches, and one that answers.

    Images are decoded, and tasks loaded, while a batch runs. Whenever the engine is free and queries wait, the policy
    decides which run next and which are evicted.

    Args:
        context: Context that the service is started with.
        run: The model.
        decoder: Decoder of encoded images.
        shape: Channels, height and width of the model's input.
        library: The model's tasks; owned by the service from now on.
        policy: Policy that decides; owned by the service from now on.
        accuracies: Accuracy by task and γ, which the policy reads; the service adds the tasks of admitted queries.
        default_latency_s: Seconds from arrival to deadline for requests without a deadline.
        readers: Number of threads that decode images.

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
        self._draining = False  # no further request is admitted
        self._ended = False  # no further batch is run
        self._answering_s = 0.0  # moving average from the end of a batch to the last of its answers
        self._answers = AnswerThread[Callable[[], None]](context, lambda answer: answer())
        self._runner = context.start_thread("runner", self._work)
        self._intake = Intake(
            context, library, self._metrics, self._read, self._admit, self._last_admitted, readers=readers
        )

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Pass requests to the threads that read them; does not wait."""
        if not self._intake.accept(requests):
            for request in requests:
                request.fail(model_stops())

    def close(self, timeout_s: float) -> None:
        """Run the queued rows, then end the threads; rows that are left after `timeout_s` seconds stay unanswered."""
        until = time.monotonic() + timeout_s
        self._intake.stop()
        join_until(until, [self._runner])
        self._end()
        self._answers.close(until)
        self._intake.close(remaining_s(until))

    def _read(self, request: PendingRequest, task: str) -> ReadImages:
        return ReadImages(request, task, read_images(request.inputs, self._decoder, self._shape))

    def _admit(self, read: ReadImages, lease: Lease[OtasTask]) -> bool:
        with self._changed:
            if self._ended:
                return False
            now = time.monotonic()
            self._accuracies[read.task] = lease.handle.accuracy
            admitted = OtasRequest(read, lease, self._default_latency_s, 2 * self._answering_s)
            try:
                for row in admitted.rows:
                    self._policy.add(row, now)
            except BaseException:
                self._dequeue(admitted)
                admitted.end()
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
                evicted = self._evict(decision.evicted)
                self._metrics.waiting.set(len(self._policy))
            for request in evicted:
                self._count_end(request, "evicted")  # before the batch runs, which may have another row of the request
            if evicted:
                self._answers.put(partial(self._refuse, evicted, now))
            if decision.batch is not None:
                ran = decision.batch, self._run(decision.batch, now)

    def _evict(self, queries: Sequence[Query]) -> list[OtasRequest]:
        """Return the requests of evicted queries, whose other queries leave too: a request has one answer."""
        requests = list(dict.fromkeys(cast(OtasRow, query).parent for query in queries))
        for request in requests:
            self._dequeue(request)
        return requests

    def _dequeue(self, request: OtasRequest) -> None:
        """Remove the waiting queries of a request; called with the lock held."""
        for row in request.rows:
            self._policy.remove(row)

    def _run(self, batch: Batch, now: float) -> float | None:
        """Run a batch and return its seconds; None where it failed or some of its queries were not run."""
        planned = cast(Sequence[OtasRow], batch.queries)
        rows = [row for row in planned if self._wanted(row.parent, now)]
        if not rows:
            return None
        try:
            features = self._transformer(batch.gamma, *batch_inputs(rows, batch.gamma))
        except Exception as error:
            answer = failure(error, "the engine failed")
            for request in dict.fromkeys(row.parent for row in rows):
                self._drop(request, "failed", answer)
            return None
        ended = time.monotonic()
        self._answers.put(partial(self._answer, rows, batch.gamma, now, ended, features))
        self._metrics.ran(batch, rows, now, ended - now)
        return ended - now if len(rows) == len(planned) else None

    def _wanted(self, request: OtasRequest, now: float) -> bool:
        """Whether a row of a request should still run; counts a request that has ended meanwhile."""
        if request.ended:
            return False
        if request.request.answered:  # by the boundary, at its deadline
            self._drop(request, "evicted")
            return False
        cancelled = cancellation(request.request, now)
        if cancelled is not None:
            self._drop(request, "cancelled", cancelled)
        return cancelled is None

    def _answer(self, rows: Sequence[OtasRow], gamma: int, started: float, ended: float, features: FloatArray) -> None:
        for row, logits in zip(rows, batch_logits(rows, gamma, features), strict=True):
            request = row.parent
            if request.request.record is not None:
                request.request.record.ran(started, ended)
            if request.results.finish(row.index, RowResult(logits, gamma, started - row.arrival)):
                reply(request, row.parameters.labels)
                self._count_end(request, "in_time" if time.monotonic() <= request.deadline else "late")
        self._answering_s += _AVERAGING_STEP * (time.monotonic() - ended - self._answering_s)

    def _refuse(self, evicted: Sequence[OtasRequest], now: float) -> None:
        for each in evicted:
            request = each.request
            request.fail(missed_in_queue(request, now, latency_ms=(each.deadline - request.arrival) * 1e3))

    def _drop(self, request: OtasRequest, outcome: Outcome, error: TidalError | None = None) -> None:
        """End a request without running its other rows, and answer it with `error` unless it has been answered."""
        with self._changed:
            self._dequeue(request)
        self._count_end(request, outcome)
        if error is not None:
            request.request.fail(error)

    def _count_end(self, request: OtasRequest, outcome: Outcome) -> None:
        """End a request and count the outcome of its queries."""
        request.end()
        self._metrics.count_outcome(outcome, len(request.rows), request.utility)
