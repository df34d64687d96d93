"""The `tabi` service: sends each query to a small level first, and re-routes it where that is not confident enough."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence

from tidal.errors import Internal, TidalError
from tidal.requests import PendingRequest
from tidal.service import ServiceContext
from tidal.serving.endings import failure, model_stops
from tidal.serving.threads import remaining_s
from tidal.tabi.calls import TimedAnswer
from tidal.tabi.choice import CandidateChoice, OverloadControl
from tidal.tabi.dispatch import EndedCall, LevelCalls, StartModels
from tidal.tabi.early import EarlyRouter
from tidal.tabi.jobs import CascadeJob, LevelCall, ReplyBuilder
from tidal.tabi.manifest import TabiManifest
from tidal.tabi.metrics import TabiMetrics
from tidal.tabi.parameters import TabiParameters
from tidal.tabi.router import ANSWER_S, NextStage, Router
from tidal.tabi.tokenization import LevelTokenizers


class TabiService:
    """Calls levels for queries, and continues those that end together in one go.

    The thread that ends a call continues its job, which no other thread does: with the next level, or with the reply.
    Calls that a level has answered together are continued together, with one computation for all of them. The thread
    that submits requests waits for levels of this process for a bounded time (see `tidal.arlo.service`), so that a lone
    query crosses no other thread; threads of levels do not wait for other levels.

    Args:
        context: Context that the service is started with.
        manifest: Manifest of the cascade being served.
        parameters: Parameters of its config.pbtxt.
        choice: Candidates that can serve.
        tokenizers: Tokenizers of its levels.
        early_routers: Early routers by the level that they may skip.
        start_models: Starts the models of the levels that run in this process, which the service closes; its argument
            receives their calls that have ended.

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
        early_routers: Mapping[int, EarlyRouter],
        start_models: StartModels,
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
        self._router = Router(
            manifest, context.version, parameters, tokenizers, early_routers, self._metrics, context.log
        )
        self._lock = threading.Lock()
        self._overload = _overload_control(parameters, choice)
        self._serving = choice.default
        self._metrics.serves(manifest.candidates[self._serving].name)
        self._closing = False
        self._submitting: int | None = None  # identifier of the thread that submits requests; None: none does
        self._open = 0
        self._none_open = threading.Condition(self._lock)
        self._calls = LevelCalls(
            context,
            manifest,
            choice.levels,
            start_models,
            self._router,
            max_in_flight=parameters.max_in_flight,
            lost_calls=self._metrics.lost_calls,
            ended=self._ended,
        )

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Check requests and send them to their first level; one that cannot be accepted fails at once.

        Args:
            requests: Requests to answer.
        """
        serving = self._serving_candidate()
        stages: list[tuple[CascadeJob, NextStage]] = []
        for request in requests:
            try:
                index = self._choice.for_request(request.options.accuracy, request.options.max_level, serving)
                job = self._router.open(request, self._manifest.candidates[index])
            except Exception as error:  # one request must not stop the service for the others
                request.fail(failure(error, "the request could not be read"))
            else:
                stages.append((job, job.candidate.levels[0]))
        with self._lock:
            refused = self._closing
            if not refused:
                self._open += len(stages)
        if not refused:
            self._submitting = threading.get_ident()
            try:
                self._proceed(stages)
            finally:
                self._submitting = None
            return
        for job, _ in stages:
            job.request.fail(model_stops())

    def close(self, timeout_s: float) -> None:
        """Finish the accepted requests, then end the threads.

        Args:
            timeout_s: Seconds after which requests that are still open stay unanswered.
        """
        until = time.monotonic() + timeout_s
        with self._lock:
            self._closing = True
            self._none_open.wait_for(lambda: not self._open, timeout_s)
        self._calls.close(remaining_s(until))

    def _serving_candidate(self) -> int:
        """Return the index of the candidate that serves now."""
        if self._overload is None:
            return self._serving
        with self._lock:
            serving = self._overload.candidate(time.monotonic())
            changed, self._serving = serving != self._serving, serving
        if changed:
            name = self._manifest.candidates[serving].name
            self._metrics.serves(name)
            self._context.log.warning(f"the load has changed: candidate '{name}' serves from now on")
        return serving

    def _proceed(self, stages: Sequence[tuple[CascadeJob, NextStage]]) -> None:
        """Run the next stage of jobs, except of those that have been answered; an error in one affects no other."""
        submits = threading.get_ident() == self._submitting
        ended = 0
        while stages:
            calls: dict[int, list[LevelCall]] = {}
            finished: list[CascadeJob] = []
            for job, stage in stages:
                if isinstance(stage, int):
                    calls.setdefault(stage, []).append(self._new_call(job, stage))
                    continue
                ended += 1
                if isinstance(stage, TidalError):
                    job.request.fail(stage)
                elif not job.request.answered:
                    finished.append(job)
            # Calls before replies: a level works while replies are sent.
            wait = submits and not finished and len(calls) == 1
            refused = [each for level, sent in calls.items() for each in self._calls.send(level, sent, wait=wait)]
            stages = self._following(refused)
            if finished:
                self._reply(finished)
        if ended:
            with self._lock:
                self._open -= ended
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

    def _ended(self, calls: Sequence[EndedCall]) -> None:
        """Continue the jobs of calls that have ended."""
        self._proceed(self._following(calls))

    def _following(self, calls: Sequence[EndedCall]) -> list[tuple[CascadeJob, NextStage]]:
        """Return the next stages of jobs whose calls have ended."""
        stages: list[tuple[CascadeJob, NextStage]] = []
        answered: dict[int, list[tuple[LevelCall, TimedAnswer]]] = {}
        for ended in calls:
            call, outcome = ended.call, ended.outcome
            if isinstance(outcome, TimedAnswer):
                self._observe(call, outcome.ended)
                answered.setdefault(call.level, []).append((call, outcome))
            elif ended.ends_request:
                stages.append((call.job, outcome))
            else:
                if ended.expired:
                    self._observe(call, time.monotonic())
                stages.append((call.job, self._router.after_failure(call, outcome)))
        for of_level in answered.values():
            following = self._router.after_answers(of_level)
            stages += [(call.job, stage) for (call, _), stage in zip(of_level, following, strict=True)]
        return stages

    def _observe(self, call: LevelCall, now: float) -> None:
        """Record by how much a call, with its time in queues, exceeds the mean latency of its queries one by one."""
        if self._overload is None:
            return
        alone_ms = self._manifest.levels[call.level].latency.mean * len(call.job.active)
        with self._lock:
            self._overload.observe(now, (now - call.ready) * 1e3 - alone_ms)

    def _reply(self, jobs: Sequence[CascadeJob]) -> None:
        """Reply to requests whose queries have all been answered."""
        try:
            self._replies.reply(jobs)
        except Exception as error:
            self._context.log.exception("a request failed")
            fault = Internal(f"the answer could not be built: {type(error).__name__}: {error}")
            for job in jobs:
                job.request.fail(fault)
        for job in jobs:
            for query in job.queries:
                route = query.route
                self._metrics.answered(route.level + 1, early=not route.last and not route.degraded)


def _overload_control(parameters: TabiParameters, choice: CandidateChoice) -> OverloadControl | None:
    if parameters.overload_ms is None:
        return None
    floor = -math.inf if parameters.overload_accuracy is None else parameters.overload_accuracy
    return OverloadControl(choice.ladder(floor), parameters.overload_ms)
