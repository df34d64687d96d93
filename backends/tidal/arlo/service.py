"""The `arlo` service: queues the rows of requests in a placement policy and runs its batches on worker threads."""

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

# Pause of a lane that could not run a batch; it grows with consecutive failures of its runtime.
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
# A query that so many processes crashed on may be the cause, so it is not run again.
_MAX_CRASHES = 3


class ArloService:
    """A policy's queue with one worker thread per concurrent batch, and one more.

    A worker sends the responses of its batch itself if no query is waiting. Otherwise it runs the next batch at once,
    to keep its engine busy, and another thread sends the responses. The additional worker runs queries that arrive in
    the meantime.

    Args:
        context: Context that the service is started with.
        manifest: Manifest of the published version.
        tokenizer: Tokenizer of the version.
        policy: Policy that forms batches, used by this service only.
        runner: Runs the batches.

    Raises:
        InvalidArgument: config.pbtxt declares an output that the model does not have.
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
        self._failures = [0] * len(manifest.runtimes)  # consecutive, by runtime
        self._changed = threading.Condition()
        self._closing = False
        self._ending = threading.Event()
        self._workers: set[threading.Thread] = set()
        self._wanted = 0
        with self._changed:
            self._match_workers()
        self._answers = AnswerThread(context, self._answer)

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Tokenize requests and queue their rows; invalid requests are answered here."""
        rows = self._tokenise(requests)
        with self._changed:
            accepted = self._queue(rows)
            self._metrics.waiting.set(len(self._policy))
            self._changed.notify(len(rows))
        if not accepted:
            _refuse_all(rows)

    def run_here(self, request: PendingRequest) -> None:
        """Queue a request and run the next batch in the calling thread; that is this request if all lanes are free.

        For callers that wait for the response: no other thread has to wake. If lanes are busy or other queries come
        first, workers run the request later, as after `submit`.
        """
        rows = self._tokenise([request])
        batch: ArloBatch | None = None
        late: list[ArloRow] = []
        try:
            with self._changed:
                accepted = self._queue(rows)
                if accepted:
                    late, batch, now = self._next()
                    self._wake()
            if not accepted:
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
        """Call `act` while no other thread uses the policy, then match the number of workers to its lanes."""
        with self._changed:
            act()
            if not self._closing:
                self._match_workers()

    def close(self, timeout_s: float) -> None:
        """Run the waiting queries, then end the threads; rows left after `timeout_s` seconds stay unanswered."""
        until = time.monotonic() + timeout_s
        self._ending.set()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            workers = list(self._workers)
        join_until(until, workers)
        self._answers.close(until)

    def _match_workers(self) -> None:
        """Match the number of workers to the lanes, plus one: start missing ones, wake surplus ones to end."""
        wanted = self._policy.max_concurrency + 1
        if wanted == self._wanted:
            return
        self._wanted = wanted
        while len(self._workers) < wanted:
            self._workers.add(self._context.start_thread("worker", self._work))
        self._changed.notify_all()

    def _tokenise(self, requests: Sequence[PendingRequest]) -> list[ArloRow]:
        """Return the rows of valid requests; fail the others."""
        rows: list[ArloRow] = []
        for request in requests:
            try:
                rows.extend(self._read(request))
            except Exception as error:  # one request must not fail the others
                request.fail(failure(error, "the request could not be read"))
        return rows

    def _queue(self, rows: Sequence[ArloRow]) -> bool:
        """Queue rows, with the lock held; return False if the service is closing."""
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
        """Stop after a failure: `tidal.triton` fails the open requests and starts a new service."""
        with self._changed:
            self._closing = True
            self._policy.clear()
            self._changed.notify_all()

    def _wake(self) -> None:
        """Wake a worker if a batch can start: a thread that wakes in vain delays the running one."""
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
        """Return expired queries, the batch to start, and the time of this decision."""
        now = time.monotonic()
        late = cast(list[ArloRow], self._policy.expired(now))
        batch = self._policy.next_batch(now)
        self._metrics.waiting.set(len(self._policy))
        return late, batch, now

    def _refuse(self, late: Sequence[ArloRow], now: float) -> None:
        for row in late:
            row.parent.fail(missed_in_queue(row.parent.request, now))

    def _run(self, batch: ArloBatch, now: float) -> tuple[list[ArloRequest], float | None]:
        """Run a batch; return the requests it completed, and its duration in seconds (None unless all queries ran)."""
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
        """Requeue a batch that its lane could not run, and pause the lane.

        Each query is retried until its deadline or the request timeout passes, unless it may be what crashes processes.
        """
        self._metrics.requeue(self._runtimes[batch.runtime], len(rows))
        for row in rows:
            row.crashes += error.died
            if row.crashes >= _MAX_CRASHES:
                row.parent.fail(
                    Internal(f"the process to run this query crashed or was down {row.crashes} times: {error}")
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
