"""The `pets` service: reads requests, loads their tasks, and runs waiting queries in planned batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from tidal.encoder_tasks.head import RowResult
from tidal.encoder_tasks.metrics import AnswerMetrics
from tidal.errors import TidalError
from tidal.pets.copies import MergedCopies, MergingOptions
from tidal.pets.engine.contract import PetsEngine, lanes_of
from tidal.pets.engine.description import ATTENTION_RECEIVED
from tidal.pets.heads import head_reads, shared_outputs
from tidal.pets.inputs import TokenisedRequest, read_token_rows
from tidal.pets.jobs import NamedLease, PetsRequest, PetsRow, reply, row_results, wants_attention
from tidal.pets.library import PetsLibrary, ServedTask
from tidal.pets.metrics import PetsMetrics
from tidal.pets.policies import PetsBatch, PetsScheduler
from tidal.pets.texts import TaskTexts
from tidal.requests import PendingRequest
from tidal.service import ServiceContext
from tidal.serving.endings import failure, missed_in_queue, model_stops
from tidal.serving.threads import DRAIN_S, AnswerThread, join_until, remaining_s
from tidal.tasks.intake import Intake, Named
from tidal.tasks.lease import Lease

# Planning begins this long before a lane is expected to be free, plus twice the last planning time.
_PLANNING_MARGIN_S = 0.0005


class PetsService:
    """An intake, one thread per concurrent batch and one more that run batches alternately, and one that answers.

    Requests are read in the thread that submits them, and tasks are loaded, while a batch runs. The runner that uses no
    lane plans the next batch shortly before a lane is expected to be free, and runs it while another one answers.

    Args:
        context: Context that the service is started with.
        texts: Reader of each task's texts, limited to the longest query that may run.
        engine: Engine of the base, with the lanes that the scheduler uses.
        library: Tasks of the model; owned by the service.
        scheduler: Decides what runs next; owned by the service.
        merging: When and how hot tasks get merged copies.
        type_ids: Whether the engine reads token types.
        attention: Whether the engine returns the attention that tokens receive.
        lengths: Bounds in tokens of the histogram of query lengths.

    Raises:
        InvalidArgument: config.pbtxt declares an output that the model does not have.
    """

    def __init__(
        self,
        context: ServiceContext,
        texts: TaskTexts,
        engine: PetsEngine,
        library: PetsLibrary,
        scheduler: PetsScheduler,
        merging: MergingOptions,
        *,
        type_ids: bool,
        attention: bool,
        lengths: Sequence[int],
    ) -> None:
        known = [output.name for output in shared_outputs()]
        context.check_outputs([*known, ATTENTION_RECEIVED] if attention else known)
        self._declared = context.outputs
        self._texts = texts
        self._type_ids = type_ids
        self._lanes = lanes_of(engine)
        self._scheduler = scheduler
        self._metrics = PetsMetrics(context.metrics, lengths, packed=engine.description.packed)
        self._answer_metrics = AnswerMetrics(context.metrics)
        self._changed = threading.Condition()
        self._draining = False  # no more requests are admitted
        self._ended = False  # no more batches run
        self._planning_s = 0.0
        self._plan_at: dict[int, float] = {}  # when to plan for a busy lane; missing: planned already
        self._copies = MergedCopies(context, library, merging, self._have_copies)
        self._runners = [context.start_thread("runner", self._work) for _ in range(scheduler.max_concurrency + 1)]
        self._answers = AnswerThread(context, self._answer)
        self._intake = Intake(context, library, self._metrics, list, self._admit, self._last_admitted)

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Read requests and queue their rows; invalid requests are answered here."""
        if not self._intake.accept(requests):
            for request in requests:
                request.fail(model_stops())
        self._answers.drain(DRAIN_S)

    def close(self, timeout_s: float) -> None:
        """Finish waiting queries, then end the threads.

        Args:
            timeout_s: Seconds to wait; queries that still wait afterwards are not answered.
        """
        until = time.monotonic() + timeout_s
        self._intake.stop()
        join_until(until, self._runners)
        with self._changed:
            self._ended = True
            self._scheduler.clear()
            self._changed.notify_all()
        self._answers.close(until)
        self._copies.close(remaining_s(until))
        self._intake.close(remaining_s(until))

    def _admit(self, named: Sequence[tuple[Named, Lease[ServedTask] | None]]) -> list[TidalError | None]:
        """Tokenise and queue requests; after their tasks have loaded, which decide what is read of a text."""
        # The intake refuses requests without a task.
        requests = [NamedLease(each.request, cast(str, each.task), cast(Any, lease)) for each, lease in named]
        read = self._tokenise(requests)
        errors: list[TidalError | None] = []
        with self._changed:
            for request, rows in zip(requests, read, strict=True):
                if self._ended:
                    errors.append(model_stops())
                elif isinstance(rows, TidalError):
                    errors.append(rows)
                else:
                    errors.append(self._queue(request.rows(rows.queries, rows.tokens, rows.windows)))
            self._metrics.waiting.set(len(self._scheduler))
            if self._scheduler.can_start or (self._plan_at and time.monotonic() >= min(self._plan_at.values())):
                self._changed.notify()
        return errors

    def _tokenise(self, requests: Sequence[NamedLease]) -> list[TokenisedRequest | TidalError]:
        results = read_token_rows(requests, self._texts, self._declared)
        lengths: list[int] = []
        for each, read in zip(requests, results, strict=True):
            if isinstance(read, TidalError):
                self._metrics.refused("input", each.request.rows)
                continue
            lengths += [len(row.ids) for row in read.queries]
            if each.request.record is not None:
                each.request.record.tokens = sum(len(row.ids) for row in read.tokens)
        self._metrics.arrived(lengths)
        return results

    def _queue(self, rows: Sequence[PetsRow]) -> TidalError | None:
        """Queue the rows of a request, with the lock held; returns the error if the scheduler refuses one."""
        try:
            for row in rows:
                self._scheduler.submit(row)
        except TidalError as error:
            return error  # rows that were queued do not run, since their request has been answered
        self._copies.note(rows)
        return None

    def _have_copies(self, tasks: frozenset[str]) -> None:
        with self._changed:
            self._scheduler.copies = tasks

    def _last_admitted(self) -> None:
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException:
            # The boundary answers outstanding requests and starts a new service: leave other runners nothing to run.
            with self._changed:
                self._ended = True
                self._scheduler.clear()
                self._changed.notify_all()
            raise

    def _serve(self) -> None:
        ran: PetsBatch | None = None
        took: float | None = None
        finished: list[PetsRequest] = []
        while True:
            with self._changed:
                if ran is not None:
                    self._scheduler.finished(ran, took)
                    self._plan_at.pop(ran.lane, None)
                    ran = None
                late, batch, now = self._next()
                if self._scheduler.can_start:
                    self._changed.notify()
                if batch is None and not late and not finished:
                    if self._ended or (self._draining and not len(self._scheduler)):
                        self._changed.notify_all()
                        return
                    self._changed.wait(self._prepare(now))
                    continue
            if batch is None:
                self._answers.answer_here(finished)
            elif finished:
                self._answers.put(finished)
            finished = []
            self._refuse(late, now)
            if batch is not None:
                finished, took = self._run(batch, now)
                ran = batch

    def _next(self) -> tuple[list[PetsRow], PetsBatch | None, float]:
        """Expired queries, the batch to start, and the time of that decision."""
        now = time.monotonic()
        batch = self._scheduler.next_batch(now)
        late = cast(list[PetsRow], self._scheduler.expired(now))
        if batch is not None:
            self._plan_at[batch.lane] = now + max(0.0, batch.seconds - 2 * self._planning_s - _PLANNING_MARGIN_S)
            # Another runner waits until planning is due.
            self._changed.notify()
        self._metrics.waiting.set(len(self._scheduler))
        self._metrics.busy_lanes.set(self._scheduler.lanes.busy)
        return late, batch, now

    def _prepare(self, now: float) -> float | None:
        """Plan for waiting queries once per batch, when it is time to.

        Args:
            now: Present time in seconds.

        Returns:
            Seconds until planning is due; None: nothing is due before something changes.
        """
        if not self._plan_at:
            return None
        lane, due = min(self._plan_at.items(), key=lambda each: each[1])
        if now < due:
            return due - now
        if len(self._scheduler):
            del self._plan_at[lane]
            self._scheduler.prepare()
            self._planning_s = time.monotonic() - now
        return None

    def _refuse(self, late: Sequence[PetsRow], now: float) -> None:
        for row in late:
            self._metrics.refused("deadline", 1)
            row.parent.fail(missed_in_queue(row.parent.request, now))
            row.lease.release()

    def _run(self, batch: PetsBatch, now: float) -> tuple[list[PetsRequest], float | None]:
        """Run a batch, and return the requests that it completed, and its duration unless a query did not run."""
        taken = cast(Sequence[PetsRow], batch.queries)
        finished: list[PetsRequest] = []
        took: float | None = None
        try:
            rows = [row for row in taken if row.parent.wanted(now)]
            if rows:
                results = self._results(rows, batch.copy, batch.lane)
                ended = time.monotonic()
                took = ended - now if len(rows) == len(taken) else None
                self._metrics.ran(rows, now, ended - now, narrow=batch.lane > 0)
                for row, result in zip(rows, results, strict=True):
                    if row.parent.request.record is not None:
                        row.parent.request.record.ran(now, ended, len(rows))
                    if row.parent.finish(row.index, result):
                        finished.append(row.parent)
        except Exception as error:
            answer = failure(error, "the engine failed")
            for row in taken:
                row.parent.fail(answer)
        finally:
            for row in taken:
                row.lease.release()
        return finished, took

    def _results(self, rows: Sequence[PetsRow], merged: str | None, number: int) -> list[RowResult]:
        """Run rows on a lane of the merged copy for the task `merged`, or of the shared base."""
        lengths = np.array([row.length for row in rows], np.int32)
        inside = np.arange(lengths.max()) < lengths[:, None]
        ids = np.zeros(inside.shape, np.int32)
        ids[inside] = np.concatenate([row.tokens.ids for row in rows])
        types = np.zeros_like(ids) if self._type_ids else None
        if types is not None:
            types[inside] = np.concatenate([row.type_ids for row in rows])
        tasks = [row.loaded for row in rows]
        copy = None if merged is None else self._copies.find(merged, tasks)
        lane = self._lanes[number]
        if copy is not None:
            self._metrics.merged.inc(len(rows))
            lane, tasks = lanes_of(copy.engine)[number], [copy.task] * len(rows)
        outputs = lane.run(
            tasks,
            ids,
            lengths,
            types,
            all_tokens=any(head_reads(row.loaded.head) == "tokens" for row in rows),
            attention=any(wants_attention(row.parent.request) for row in rows),
        )
        return row_results(rows, outputs)

    def _answer(self, finished: Sequence[PetsRequest]) -> None:
        for answered in finished:
            reply(answered, self._answer_metrics)
