"""The `arlo` service: reads requests, queues their rows by a placement policy, and answers from its workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

from tidal.arlo.jobs import AnswerBuilder, ArloRequest, ArloRow
from tidal.arlo.manifest import ArloManifest
from tidal.arlo.metrics import ArloMetrics
from tidal.arlo.model import padded_length
from tidal.arlo.policies import ArloBatch, PlacementPolicy
from tidal.arlo.reader import read_rows
from tidal.arlo.runner import BatchRunner
from tidal.errors import Internal, Unavailable
from tidal.requests import PendingRequest
from tidal.service import ModelUnavailable, ServiceContext
from tidal.serving.backoff import backoff_s
from tidal.serving.endings import failure, missed_in_queue, model_stops
from tidal.serving.threads import AnswerThread, join_until
from tidal.text import TextTokenizer

# A lane that could not run anything pauses, longer the more often its runtime fails in a row.
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
# A query that met so many dead processes may be what they died of: it is not given to another one.
_MAX_CRASHES = 3


class ArloService:
    """One queue behind a policy, and a worker for each batch that may run, and one more.

    A worker answers the queries that it ran while nothing waits. When more waits, it runs that at once, so that its
    engine does not stand still, and another thread answers; the one more takes what comes while a worker answers.

    Args:
        context: what the service is started with.
        manifest: of the published version.
        tokenizer: the version's.
        policy: says what runs next, and where; the service's own from now on.
        runner: runs it.

    Raises:
        InvalidArgument: config.pbtxt declares an output that the model does not give.
    """

    def __init__(
        self,
        context: ServiceContext,
        manifest: ArloManifest,
        tokenizer: TextTokenizer,
        policy: PlacementPolicy,
        runner: BatchRunner,
    ) -> None:
        self._context = context
        self._manifest = manifest
        self._runtimes = manifest.runtimes
        self._tokenizer = tokenizer
        self._policy = policy
        self._runner = runner
        self._answer_builder = AnswerBuilder(manifest, context.outputs)
        self._metrics = ArloMetrics(context.metrics, [runtime.max_length for runtime in manifest.runtimes])
        self._failures = [0] * len(manifest.runtimes)  # in a row
        self._changed = threading.Condition()
        self._closing = False
        self._ending = threading.Event()
        self._workers: set[threading.Thread] = set()
        self._wanted = 0
        with self._changed:
            self._match_workers()
        self._answers = AnswerThread(context, self._answer)

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Read requests and queue their rows; one that cannot be read is answered here."""
        rows = self._tokenise(requests)
        with self._changed:
            taken = self._queue(rows)
            self._metrics.waiting.set(len(self._policy))
            self._changed.notify(len(rows))
        if not taken:
            _refuse_all(rows)

    def run_here(self, request: PendingRequest) -> None:
        """Read a request, and run what goes next in the calling thread, which is this request if no lane is busy.

        For a caller that waits for the answer anyway: no thread has to wake for it. Where the lanes are busy, or
        others go first, workers answer it later, as after `submit`.
        """
        rows = self._tokenise([request])
        batch: ArloBatch | None = None
        late: list[ArloRow] = []
        try:
            with self._changed:
                taken = self._queue(rows)
                if taken:
                    late, batch, now = self._next()
                    self._wake()
            if not taken:
                _refuse_all(rows)
                return
            self._refuse(late, now)
            if batch is None:
                return
            finished, took = self._run(batch, now)
            with self._changed:
                self._policy.finished(batch, took)
                self._wake()
        except BaseException as error:
            self._clear_queue()
            self._context.failed(error)
            raise
        self._answer(finished)

    def adjust(self, act: Callable[[], None]) -> None:
        """Let `act` look at the policy or change its lanes, while no other thread uses it; workers follow the lanes."""
        with self._changed:
            act()
            if not self._closing:
                self._match_workers()

    def close(self, timeout_s: float) -> None:
        """Finish what waits, then end the threads; rows that are left after `timeout_s` stay unanswered."""
        until = time.monotonic() + timeout_s
        self._ending.set()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            workers = list(self._workers)
        join_until(until, workers)
        self._answers.close(until)

    def _match_workers(self) -> None:
        """Have a worker for each lane and one more: start those that lack, wake those that are too many."""
        wanted = self._policy.max_concurrency + 1
        if wanted == self._wanted:
            return
        self._wanted = wanted
        while len(self._workers) < wanted:
            self._workers.add(self._context.start_thread("worker", self._work))
        self._changed.notify_all()

    def _tokenise(self, requests: Sequence[PendingRequest]) -> list[ArloRow]:
        """The rows of requests that can be read; the others are answered."""
        rows: list[ArloRow] = []
        for request in requests:
            try:
                rows.extend(self._read(request))
            except Exception as error:  # one request must not cost the others their service
                request.fail(failure(error, "the request could not be read"))
        return rows

    def _queue(self, rows: Sequence[ArloRow]) -> bool:
        """Queue rows, with the lock held; False: nothing is taken any more."""
        if not self._closing:
            for row in rows:
                self._policy.submit(row)
        return not self._closing

    def _read(self, request: PendingRequest) -> list[ArloRow]:
        tokens = read_rows(request.inputs, self._tokenizer)
        parent = ArloRequest(request, len(tokens))
        for row in tokens:
            self._metrics.length(len(row.ids))
        if request.record is not None:
            request.record.tokens = sum(len(row.ids) for row in tokens)
        return [
            ArloRow(len(row.ids), request.arrival, request.deadline, tokens=row, parent=parent, index=index)
            for index, row in enumerate(tokens)
        ]

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException:
            self._clear_queue()
            raise

    def _clear_queue(self) -> None:
        """Leave nothing to run: the boundary answers what is outstanding and starts a fresh service."""
        with self._changed:
            self._closing = True
            self._policy.clear()
            self._changed.notify_all()

    def _wake(self) -> None:
        """Wake a worker if there is something for it: a thread that wakes for nothing delays the one that runs."""
        if self._policy.can_start or self._closing:
            self._changed.notify()

    def _serve(self) -> None:
        ran: ArloBatch | None = None
        took: float | None = None
        finished: list[ArloRequest] = []
        while True:
            with self._changed:
                if ran is not None:
                    self._policy.finished(ran, took)
                    ran = None
                late, batch, now = self._next()
                self._wake()
                if batch is None and not late and not finished:
                    if self._closing and not len(self._policy):
                        self._changed.notify_all()
                        return
                    if len(self._workers) > self._wanted:
                        self._workers.discard(threading.current_thread())
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
                finished, took = self._run(batch, now)
                ran = batch

    def _next(self) -> tuple[list[ArloRow], ArloBatch | None, float]:
        """Queries that are too late, the batch to start, and the moment that was decided for."""
        now = time.monotonic()
        late = cast(list[ArloRow], self._policy.expired(now))
        batch = self._policy.next_batch(now)
        self._metrics.waiting.set(len(self._policy))
        return late, batch, now

    def _refuse(self, late: Sequence[ArloRow], now: float) -> None:
        for row in late:
            row.parent.fail(missed_in_queue(row.parent.request, now))

    def _run(self, batch: ArloBatch, now: float) -> tuple[list[ArloRequest], float | None]:
        """Run a batch; the requests that it completed, and the seconds that all of it took, None if not all ran."""
        rows = [row for row in cast(Sequence[ArloRow], batch.queries) if row.parent.wanted(now)]
        if not rows:
            return [], None
        deadline = min((row.deadline for row in rows if row.deadline is not None), default=None)
        try:
            outputs = self._runner.run(batch.lane, batch.runtime, [row.tokens for row in rows], deadline)
        except ModelUnavailable as error:
            self._requeue(batch, rows, error)
            return [], None
        except Exception as error:
            answer = failure(error, "the engine failed")
            for row in rows:
                row.parent.fail(answer)
            return [], None
        took = time.monotonic() - now
        self._failures[batch.runtime] = 0
        runtime = self._runtimes[batch.runtime]
        lengths = [row.length for row in rows]
        padded = padded_length(self._manifest, batch.runtime, max(lengths))
        self._metrics.ran(runtime, lengths, padded, [now - row.arrival for row in rows], took)
        finished = []
        for place, row in enumerate(rows):
            if row.parent.request.record is not None:
                row.parent.request.record.ran(now, now + took)
            if row.parent.finish(row.index, self._answer_builder.row(outputs, place, row.length, runtime)):
                finished.append(row.parent)
        return finished, took if len(rows) == len(batch.queries) else None

    def _requeue(self, batch: ArloBatch, rows: Sequence[ArloRow], error: ModelUnavailable) -> None:
        """Let others run what this lane could not run, and let the lane pause.

        Each query is tried again until its deadline or the boundary's time for an answer passes, unless processes may
        have died of it.
        """
        self._metrics.requeue(self._runtimes[batch.runtime], len(rows))
        for row in rows:
            row.crashes += error.died
            if row.crashes >= _MAX_CRASHES:
                row.parent.fail(
                    Internal(f"{row.crashes} times the process that was to run this query died or was dead: {error}")
                )
            elif self._closing:
                row.parent.fail(Unavailable(f"the model stops serving here, and {error}"))
        with self._changed:
            self._policy.requeue(batch)
            self._metrics.waiting.set(len(self._policy))
            self._changed.notify(len(self._policy))
        failures = self._failures[batch.runtime]
        self._failures[batch.runtime] = failures + 1
        self._ending.wait(backoff_s(failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S))

    def _answer(self, finished: Sequence[ArloRequest]) -> None:
        for each in finished:
            self._answer_builder.reply(each)


def _refuse_all(rows: Sequence[ArloRow]) -> None:
    for parent in {id(row.parent): row.parent for row in rows}.values():
        parent.request.fail(model_stops())
