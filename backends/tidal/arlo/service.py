"""The `arlo` service: queues the rows of requests in a placement policy and runs its batches on worker threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from tidal.arlo.execution import NOTHING_RAN, BatchExecution, Outcome, StartedBatch
from tidal.arlo.jobs import AnswerBuilder, ArloRequest, ArloRow, refuse_all
from tidal.arlo.manifest import ArloManifest
from tidal.arlo.metrics import ArloMetrics
from tidal.arlo.policies import ArloBatch, PlacementPolicy
from tidal.arlo.rows import RowBuilder
from tidal.arlo.runner import BatchRunner
from tidal.arlo.submitter_wait import SubmitterWait
from tidal.encoder_tasks.cutting import Cutter
from tidal.encoder_tasks.metrics import AnswerMetrics
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.errors import Internal, TidalError
from tidal.requests import PendingRequest
from tidal.service import ModelUnavailable, ServiceContext
from tidal.serving.backoff import backoff_s
from tidal.serving.endings import missed_in_queue, model_stops
from tidal.serving.threads import AnswerThread, join_until
from tidal.text import TextTokenizer

# Pause of a lane that could not run a batch; it grows with consecutive failures of its runtime.
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
# A query that so many processes crashed on may be the cause, so it is not run again.
_MAX_CRASHES = 3


class ArloService:
    """A policy's queue with one worker thread per concurrent batch, and one more.

    A worker starts the next batch before it sends the responses of the last one. If the next one needs its thread,
    another thread sends them. The additional worker runs queries that arrive in the meantime. Batches that wait in the
    engine until a running one has ended are in `_queued`, in the order in which they were started.

    Args:
        context: Context that the service is started with.
        manifest: Manifest of the published version.
        tokenizer: Tokenizer of the version.
        policy: Policy that forms batches, used by this service only.
        runner: Runs the batches.
        cutter: Cuts texts that are too long; None if the tokenizer refuses or truncates them.
        replied: Called after each series of replies by the thread that sent them, so that requests which collect their
            replies handle them together. None for no such call.

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
        cutter: Cutter | None = None,
        replied: Callable[[], None] | None = None,
    ) -> None:
        self._context = context
        self._runtimes = manifest.runtimes
        self._policy = policy
        self._replied = replied
        self._handed_over: deque[StartedBatch] = deque()
        self._queued: deque[ArloBatch] = deque()  # batches that wait in the engine
        self._answer_builder = AnswerBuilder(manifest, tokenizer, context.outputs, AnswerMetrics(context.metrics))
        self._metrics = ArloMetrics(context.metrics, [runtime.max_length for runtime in manifest.runtimes])
        self._rows = RowBuilder(self._answer_builder, tokenizer, cutter, self._metrics)
        self._execution = BatchExecution(manifest, runner, self._answer_builder, self._metrics)
        self._waits = SubmitterWait(context.grouped)
        self._failures = [0] * len(manifest.runtimes)  # consecutive, by runtime
        # `with` on a lock runs no Python, on a condition it does.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closing = False
        self.refusal: TidalError | None = None  # of queries that arrive; changed within `adjust`
        self._ending = threading.Event()
        self._workers: set[threading.Thread] = set()
        self._wanted = 0
        with self._lock:
            self._match_workers()
        self._answers = AnswerThread(context, self._answer)

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Tokenise requests and queue their rows; invalid requests are answered here.

        If a lane is free, its engine is started here, since waking a thread takes as long as a short text. This thread
        also waits for batches that are expected to end soon, for a bounded time; workers wait for all others. It waits
        longer for a batch that runs alone, unless a query had a deadline lately. It waits for none if each submission
        brings one request only, since there would be no others to batch.
        """
        self._accept(self._rows.tokenise(requests), wait=True)

    def submit_tokens(
        self, requests: Sequence[tuple[PendingRequest, Sequence[TokenRow]]], *, wait: bool = False
    ) -> None:
        """Queue requests with their rows, tokenised in this process; starts engines here only with `wait`."""
        self._accept(self._rows.build(requests), wait=wait)

    def _accept(self, rows: Sequence[ArloRow], *, wait: bool) -> None:
        try:
            with self._lock:
                refusal = self._queue(rows)
                late, batch, now = self._next(start=wait and self._execution.starts)
                self._wake()
            if refusal is not None:
                refuse_all(rows, refusal)
            self._refuse(late, now)
            if batch is not None:
                self._start_here(batch, now, len(rows))
        except BaseException:
            self._clear_queue()
            raise

    def _start_here(self, batch: ArloBatch | None, now: float, arrived: int) -> None:
        """Start batches in the calling thread, until one takes long or a bounded time is over.

        Args:
            batch: First batch.
            now: Time of its decision, by `time.monotonic()`, in seconds.
            arrived: Number of rows that arrived together.
        """
        since = now
        self._waits.submitted_at(since)
        while batch is not None:
            started = self._execution.start(batch, now)
            wait_s = self._waits.limit_s(batch, time.monotonic(), since=since, rows=arrived)
            outcome = self._outcome(started, wait_s) if wait_s > 0 else None
            if outcome is None:
                with self._lock:
                    self._handed_over.append(started)
                    self._changed.notify()
                return
            finished, took = outcome
            self._waits.waited(batch, time.monotonic())
            with self._lock:
                self._finished(batch, took)
                batch = None
                late: Sequence[ArloRow] = ()
                if len(self._policy) or self._closing:
                    late, batch, now = self._next()
                    self._wake()
            self._answer(finished)
            self._refuse(late, now)

    def adjust(self, act: Callable[[], None]) -> None:
        """Call `act` while no other thread uses the policy, then match the number of workers to its lanes."""
        with self._lock:
            act()
            if not self._closing:
                self._match_workers()

    def close(self, timeout_s: float) -> None:
        """Run the waiting queries, then end the threads; rows left after `timeout_s` seconds stay unanswered."""
        until = time.monotonic() + timeout_s
        self._ending.set()
        with self._lock:
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

    def _queue(self, rows: Sequence[ArloRow]) -> TidalError | None:
        """Queue rows, with the lock held; return the error if they are refused."""
        refusal = model_stops() if self._closing else self.refusal
        for row in rows if refusal is None else ():
            if row.deadline is not None:
                self._waits.deadline_at(row.arrival)
            self._policy.submit(row)
        return refusal

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException:
            self._clear_queue()
            raise

    def _clear_queue(self) -> None:
        """Stop after a failure: `tidal.triton` fails the open requests and starts a new service."""
        with self._lock:
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
            with self._lock:
                if ran is not None:
                    self._finished(ran, took)
                    ran = None
                handed = self._handed_over.popleft() if self._handed_over else None
                late, batch, now = self._next(start=handed is None)
                self._wake()
                if batch is None and handed is None and not late and not finished:
                    if self._closing and not len(self._policy):
                        self._changed.notify_all()
                        return
                    if len(self._workers) > self._wanted:
                        self._workers.discard(threading.current_thread())
                        return
                    self._changed.wait()
                    continue
            started = handed if batch is None else self._execution.start(batch, now)
            if started is None or started.run is not None:
                self._answer(finished)
            elif finished:
                self._answers.put(finished)
            finished = []
            self._refuse(late, now)
            if started is not None:
                finished, took = self._outcome(started) or NOTHING_RAN
                ran = started.batch

    def _finished(self, batch: ArloBatch, took: float | None) -> None:
        """Free the lane of a batch, with the lock held; the first one that waits in the engine runs from now on."""
        self._policy.finished(batch, took)
        if self._queued:
            self._queued.popleft().began = time.monotonic()

    def _next(self, *, start: bool = True) -> tuple[list[ArloRow], ArloBatch | None, float]:
        """Return expired queries, the batch to start (None without `start`), and the time of this decision."""
        now = time.monotonic()
        late = cast(list[ArloRow], self._policy.expired(now))
        batch = self._policy.next_batch(now) if start else None
        if batch is not None and batch.queued:
            self._queued.append(batch)
        self._metrics.waiting.set(len(self._policy))
        return late, batch, now

    def _refuse(self, late: Sequence[ArloRow], now: float) -> None:
        for row in late:
            row.parent.fail(missed_in_queue(row.parent.request, now))

    def _outcome(self, started: StartedBatch, wait_s: float | None = None) -> Outcome | None:
        """Wait for a batch, and requeue it if its lane cannot run anything now; see `BatchExecution.outcome`."""
        try:
            outcome = self._execution.outcome(started, wait_s)
        except ModelUnavailable as error:
            self._requeue(started.batch, started.rows, error)
            return NOTHING_RAN
        if outcome is not None and outcome is not NOTHING_RAN:
            self._failures[started.batch.runtime] = 0
        return outcome

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
                row.parent.fail(model_stops())
        with self._lock:
            self._policy.requeue(batch)
            self._metrics.waiting.set(len(self._policy))
            self._changed.notify(len(self._policy))
        failures = self._failures[batch.runtime]
        self._failures[batch.runtime] = failures + 1
        self._ending.wait(backoff_s(failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S))

    def _answer(self, finished: Sequence[ArloRequest]) -> None:
        for each in finished:
            self._answer_builder.reply(each)
        if self._replied is not None:
            self._replied()
