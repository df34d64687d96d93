"""The `tabi` service: sends each query to a small level first, and re-routes it where that is not confident enough."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from tidal.arlo.embedded import EmbeddedModels
from tidal.errors import Cancelled, Internal, TidalError, Unavailable
from tidal.requests import PendingRequest
from tidal.service import ServiceContext
from tidal.serving.endings import cancellation, failure, model_stops
from tidal.serving.threads import join_until, remaining_s
from tidal.tabi.calls import LevelModels, RetryingLevels
from tidal.tabi.choice import CandidateChoice, OverloadControl
from tidal.tabi.jobs import CascadeJob, LevelCall, ReplyBuilder
from tidal.tabi.levels import TaskLevels
from tidal.tabi.manifest import TabiManifest
from tidal.tabi.metrics import TabiMetrics
from tidal.tabi.parameters import TabiParameters
from tidal.tabi.queues import CallTimer, LevelQueue
from tidal.tabi.routing import ANSWER_S, NextStage, Router
from tidal.tabi.tokenization import LevelTokenizers

# Lost workers, over all levels, that are replaced: their calls never end.
_SPARE_THREADS = 32


class TabiService:
    """Calls levels for queries: one queue with workers per level, and a timer for calls that take too long.

    A job has one owner at a time: the worker that runs its call to a level, or the timer that has abandoned the call.
    The owner that ends the call continues the job: with the next level, or with the reply.

    Args:
        context: Context that the service is started with.
        manifest: Manifest of the cascade being served.
        parameters: Parameters of its config.pbtxt.
        choice: Candidates that can serve.
        tokenizers: Tokenizers of its levels.
        models: Models of its levels; the service closes them.

    Raises:
        InvalidArgument: config.pbtxt declares an output that the cascade does not give.
    """

    def __init__(
        self,
        context: ServiceContext,
        manifest: TabiManifest,
        parameters: TabiParameters,
        choice: CandidateChoice,
        tokenizers: LevelTokenizers,
        models: EmbeddedModels,
    ) -> None:
        self._context = context
        self._manifest = manifest
        self._timeout_s = parameters.level_timeout_ms / 1e3
        self._choice = choice
        self._replies = ReplyBuilder(manifest, context.outputs)
        self._metrics = TabiMetrics(
            context.metrics,
            [index + 1 for index in choice.levels],
            [manifest.candidates[index].name for index in choice.usable],
        )
        self._router = Router(manifest, context.version, parameters, tokenizers, self._metrics, context.log)
        self._lock = threading.Lock()
        self._overload = _overload_control(parameters, choice)
        self._serving = choice.default
        self._metrics.serves(manifest.candidates[self._serving].name)
        self._closing = False
        self._open = 0
        self._none_open = threading.Condition(self._lock)
        self._stop_retries = threading.Event()
        self._embedded = models
        tasks = TaskLevels(context.model_dir.parent, manifest)
        self._levels = RetryingLevels(LevelModels(models, manifest, tasks), self._stop_retries)
        slots = max(1, parameters.max_in_flight // len(choice.levels))
        spare = _SPARE_THREADS // len(choice.levels)
        self._queues = {
            index: LevelQueue(
                context, f"level-{index + 1}", slots, spare, self._work, partial(self._metrics.lost_calls, index + 1)
            )
            for index in choice.levels
        }
        self._timer = CallTimer(context, self._expired)

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Check requests and queue them for their first level; one that cannot be accepted fails at once.

        Args:
            requests: Requests to answer.
        """
        for request in requests:
            try:
                job = self._router.open(request, self._manifest.candidates[self._candidate(request)])
            except Exception as error:  # one request must not stop the service for the others
                request.fail(failure(error, "the request could not be read"))
            else:
                with self._lock:
                    refused = self._closing
                    self._open += not refused
                if refused:
                    request.fail(model_stops())
                else:
                    self._proceed(job, partial(_first_level, job))

    def close(self, timeout_s: float) -> None:
        """Finish the accepted requests, then end the threads.

        Args:
            timeout_s: Seconds after which requests that are still open stay unanswered.
        """
        until = time.monotonic() + timeout_s
        with self._lock:
            self._closing = True
            self._none_open.wait_for(lambda: not self._open, timeout_s)
        self._stop_retries.set()
        threads = [thread for queue in self._queues.values() for thread in queue.close()]
        self._timer.close(remaining_s(until))
        self._embedded.close(remaining_s(until))
        join_until(until, threads)

    def _candidate(self, request: PendingRequest) -> int:
        """Return the index of the candidate for a request."""
        with self._lock:
            serving = self._overload.candidate(time.monotonic())
            changed, self._serving = serving != self._serving, serving
        if changed:
            name = self._manifest.candidates[serving].name
            self._metrics.serves(name)
            self._context.log.warning(f"the load has changed: candidate '{name}' serves from now on")
        return self._choice.for_request(request.options.accuracy, request.options.max_level, serving)

    def _proceed(self, job: CascadeJob, next_stage: Callable[[], NextStage]) -> None:
        """Run the next stage of a job, unless it has been answered; an error in it affects no other job."""
        try:
            while not job.request.answered:
                stage = next_stage()
                if isinstance(stage, int):
                    call = self._new_call(job, stage)
                    if self._queues[stage].add(call):
                        self._timer.add(call)
                        return
                    lost = Unavailable("calls to it do not end; reload the cascade")
                    next_stage = partial(self._router.after_failure, call, lost)
                elif stage is None:
                    self._reply(job)
                else:
                    job.request.fail(stage)
        except Exception as error:
            self._context.log.exception("a request failed")
            job.request.fail(Internal(f"the request could not be routed: {type(error).__name__}: {error}"))
        with self._lock:
            self._open -= 1
            if not self._open:
                self._none_open.notify_all()

    def _new_call(self, job: CascadeJob, level: int) -> LevelCall:
        ready = time.monotonic()
        expires, deadline = ready + self._timeout_s, job.request.deadline
        if deadline is not None:
            latest = deadline - ANSWER_S if job.has_answers else deadline
            if latest < expires:
                return LevelCall(job, level, ready, latest, with_deadline=True)
        return LevelCall(job, level, ready, expires)

    def _work(self, call: LevelCall) -> None:
        """Run a call, on a worker of its level's queue."""
        next_stage = self._run(call)
        if self._queues[call.level].finish(call):
            self._proceed(call.job, next_stage)

    def _expired(self, call: LevelCall) -> None:
        """Continue a job without the level that takes too long."""
        if self._queues[call.level].abandon(call):
            now = time.monotonic()
            self._observe(call, now)
            error = Unavailable(f"no answer within {(now - call.ready) * 1e3:.0f} ms")
            self._proceed(call.job, partial(self._router.after_failure, call, error))

    def _run(self, call: LevelCall) -> Callable[[], NextStage]:
        """Run a call, wait for its answer, and return how the job continues."""
        job = call.job
        try:
            _check_wanted(job)
            self._router.tokenize(call)
        except TidalError as error:
            return partial(_failed, error)
        except Exception as error:
            return partial(_failed, Internal(f"the request could not be read: {type(error).__name__}: {error}"))
        try:
            timed = self._levels.call(
                call, attention=self._router.wants_attention(call), has_answer=self._router.may_stop(job)
            )
        except TidalError as error:
            return partial(self._router.after_failure, call, error)
        except Exception as error:
            return partial(self._router.after_failure, call, Internal(f"{type(error).__name__}: {error}"))
        self._observe(call, timed.ended)
        return partial(self._router.after_answer, call, timed)

    def _observe(self, call: LevelCall, now: float) -> None:
        """Record by how much a call, with its time in queues, exceeds the mean latency of its queries one by one."""
        alone_ms = self._manifest.levels[call.level].latency.mean * len(call.job.active)
        with self._lock:
            self._overload.observe(now, (now - call.ready) * 1e3 - alone_ms)

    def _reply(self, job: CascadeJob) -> None:
        for answer, query in zip(self._replies.reply(job), job.queries, strict=True):
            self._metrics.answered(answer.level, early=not query.route.last and not answer.degraded)


def _overload_control(parameters: TabiParameters, choice: CandidateChoice) -> OverloadControl:
    if parameters.overload_ms is None:
        return OverloadControl((choice.default,), math.inf)
    floor = -math.inf if parameters.overload_accuracy is None else parameters.overload_accuracy
    return OverloadControl(choice.ladder(floor), parameters.overload_ms)


def _first_level(job: CascadeJob) -> NextStage:
    return job.candidate.levels[0]


def _failed(error: TidalError) -> NextStage:
    return error


def _check_wanted(job: CascadeJob) -> None:
    """Raise `Cancelled` if the request needs no answer any more."""
    if job.request.answered:
        raise Cancelled("the request was answered while it waited")
    cancelled = cancellation(job.request, time.monotonic())
    if cancelled is not None:
        raise cancelled
