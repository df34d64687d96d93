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
from tidal.otas.rows import OUTPUTS, OtasRequest, OtasRow, ReadImages, batch_inputs, reply, row_results
from tidal.otas.tasks import OtasTask
from tidal.requests import PendingRequest
from tidal.service import ServiceContext
from tidal.serving.endings import cancellation, failure, missed_in_queue, model_stops
from tidal.serving.threads import DRAIN_S, AnswerThread, join_until, remaining_s
from tidal.tasks.intake import Intake, read_each
from tidal.tasks.lease import Lease

# Weight of the newest batch in the moving average of the time that answers take.
_AVERAGING_STEP = 0.1

# Largest batch that the thread which ran it answers itself, if no query waits.
_FEW_ROWS = 2

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

    Encoded images are decoded, and tasks loaded, while a batch runs. Whenever the engine is free and queries wait, the
    policy decides which run next and which are evicted.

    Args:
        context: Context that the service is started with.
        run: The model.
        decoder: Decoder of encoded images.
        shape: Channels, height and width of the model's input.
        library: The model's tasks; owned by the service from now on.
        policy: Policy that decides; owned by the service from now on.
        accuracies: Accuracy by task and γ, which the policy reads; the service adds the tasks of admitted queries.
        tokens: Number of tokens of an image at the first layer, without prompts.
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
        tokens: int,
        default_latency_s: float,
        readers: int,
    ) -> None:
        context.check_outputs(OUTPUTS)
        self._transformer = run
        self._decoder = decoder
        self._shape = shape
        self._tokens = tokens
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
            context,
            library,
            self._metrics,
            read_each(self._read),
            self._admit,
            self._last_admitted,
            readers=readers,
            slow=lambda request: "image" in request.inputs,
        )

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Queue requests with pixel values, and pass those with encoded images to the threads that decode them."""
        if not self._intake.accept(requests):
            for request in requests:
                request.fail(model_stops())
        self._answers.drain(DRAIN_S)

    def close(self, timeout_s: float) -> None:
        """Run the queued rows, then end the threads; rows that are left after `timeout_s` seconds stay unanswered."""
        until = time.monotonic() + timeout_s
        self._intake.stop()
        join_until(until, [self._runner])
        self._end()
        self._answers.close(until)
        self._intake.close(remaining_s(until))

    def _read(self, request: PendingRequest, task: str | None) -> ReadImages:
        assert task is not None  # the intake refuses requests without a task
        return ReadImages(request, task, read_images(request.inputs, self._decoder, self._shape))

    def _admit(self, read: Sequence[tuple[ReadImages, Lease[OtasTask] | None]]) -> list[TidalError | None]:
        with self._changed:
            if self._ended:
                return [model_stops() for _ in read]
            now = time.monotonic()
            errors = [self._queue(images, cast(Lease[OtasTask], lease), now) for images, lease in read]
            self._metrics.waiting.set(len(self._policy))
            if self._policy.can_start:
                self._changed.notify()
        return errors

    def _queue(self, read: ReadImages, lease: Lease[OtasTask], now: float) -> TidalError | None:
        """Queue the rows of a request, with the lock held; returns the error if the policy refuses one."""
        self._accuracies[read.task] = lease.handle.accuracy
        admitted = OtasRequest(read, lease, self._default_latency_s, 2 * self._answering_s)
        try:
            for row in admitted.rows:
                self._policy.add(row, now)
        except Exception as error:  # one request must not fail the others
            self._dequeue(admitted)
            admitted.end()
            return failure(error, "the request could not be queued")
        return None

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
            reason = failure(error, "the engine failed")
            for request in dict.fromkeys(row.parent for row in rows):
                self._drop(request, "failed", reason)
            return None
        ended = time.monotonic()
        self._metrics.ran(batch, rows, now, ended - now)
        answer = partial(self._answer, rows, batch.gamma, now, ended, features)
        if len(rows) <= _FEW_ROWS and not len(self._policy):
            self._answers.answer_here(answer)
        else:
            self._answers.put(answer)
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
        for row, result in zip(rows, row_results(rows, gamma, features, started), strict=True):
            request = row.parent
            if request.request.record is not None:
                request.request.record.ran(started, ended, len(rows), gamma=gamma)
            if request.results.finish(row.index, result):
                reply(request, self._tokens)
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
