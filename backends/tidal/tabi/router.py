"""What a job does after a level's answer or failure: call a further level, reply, or fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

from tidal.errors import Internal, InvalidArgument, TidalError, Unavailable
from tidal.requests import PendingRequest
from tidal.tabi.calls import TimedAnswer, level_error
from tidal.tabi.choice import single_level
from tidal.tabi.early import EarlyRouter, after_early_routing
from tidal.tabi.equations import request_key
from tidal.tabi.jobs import CascadeJob, CascadeQuery, LevelCall
from tidal.tabi.manifest import Candidate, TabiManifest
from tidal.tabi.metrics import DegradationCause, TabiMetrics
from tidal.tabi.parameters import TabiParameters
from tidal.tabi.query_route import Route, feed_all
from tidal.tabi.tokenization import LevelTokenizers, QueryTexts, request_texts

# A smaller level's answer is sent this long before the deadline, so that the client receives it in time.
ANSWER_S = 0.003
# Minimum time between two log entries about the same failing level.
_LOG_EVERY_S = 30.0

# Index of the level that the active queries go to; None: reply to the request; an error: fail it.
NextStage = int | None | TidalError


class Router:
    """Turns requests into jobs, and decides the next stage of a job.

    Args:
        manifest: Manifest of the cascade being served.
        version: Version of the cascade.
        parameters: Parameters of its config.pbtxt.
        tokenizers: Tokenizers of its levels.
        early_routers: Early routers by the level that they may skip.
        metrics: Metrics of the model.
        log: Logger of the model.
    """

    def __init__(
        self,
        manifest: TabiManifest,
        version: int,
        parameters: TabiParameters,
        tokenizers: LevelTokenizers,
        early_routers: Mapping[int, EarlyRouter],
        metrics: TabiMetrics,
        log: logging.Logger,
    ) -> None:
        self._manifest = manifest
        self._version = version
        self._parameters = parameters
        self._tokenizers = tokenizers
        self._early_routers = early_routers
        self._metrics = metrics
        self._log = log
        self._logged: dict[int, float] = {}

    def open(self, request: PendingRequest, candidate: Candidate) -> CascadeJob:
        """Return a request as a job whose queries go to the first level of its candidate.

        That is the last level alone where the early router skips the first one.

        Args:
            request: Request to open.
            candidate: Configuration that its queries use.

        Raises:
            InvalidArgument: An input is missing or has a wrong shape; the message names it and what is accepted.
        """
        texts = request_texts(request.inputs, pairs=self._manifest.pairs)
        used, fallback = candidate, None
        if candidate.early is not None and self._may_skip(request, candidate):
            used = after_early_routing(candidate, self._early_routers, texts)
            if used is not candidate:
                fallback = candidate.levels[0]
                self._metrics.early_routed(len(texts))
        queries = [CascadeQuery(each, self._route(request, used, row, each)) for row, each in enumerate(texts)]
        return CascadeJob(request, used, queries, active=queries, fallback=fallback)

    def tokenize(self, level: int, calls: Sequence[LevelCall]) -> list[TidalError | None]:
        """Tokenise together the queries of calls whose level is the first that they go to.

        Args:
            level: Index of the level.
            calls: Calls to it that are about to run.

        Returns:
            For each call why a text of it cannot be read, which names the input and the row; None if all can.
        """
        first = [call for call in calls if call.job.active[0].encoded is None]
        if not first:
            return [None] * len(calls)
        refused: dict[LevelCall, TidalError] = {}
        try:
            tokens = self._tokenizers.encode(level, [[query.texts for query in call.job.active] for call in first])
        except Exception as error:
            if len(calls) > 1:  # one of them must not stop the others
                return [fault for call in calls for fault in self.tokenize(level, [call])]
            return [Internal(f"the request could not be read: {type(error).__name__}: {error}")]
        for call, encoded in zip(first, tokens, strict=True):
            if isinstance(encoded, InvalidArgument):
                refused[call] = encoded
                continue
            for query, each in zip(call.job.active, encoded, strict=True):
                query.encoded = each
                query.tokens = len(each.ids)
            if (record := call.job.request.record) is not None:
                record.tokens = sum(len(each.ids) for each in encoded)
        return [refused.get(call) for call in calls]

    def wants_attention(self, call: LevelCall) -> bool:
        """Return whether a call's queries may be re-routed, and pruned for the next level.

        Args:
            call: Call that is about to run.
        """
        return call.job.candidate.pruning is not None and not call.job.active[0].route.last

    def may_stop(self, job: CascadeJob) -> bool:
        """Return whether a job is answered by the levels that ran if a further one fails.

        Args:
            job: Job whose queries are at a level.
        """
        return job.has_answers and self._parameters.on_level_failure == "answer"

    def after_answers(self, answered: Sequence[tuple[LevelCall, TimedAnswer]]) -> list[NextStage]:
        """Feed a level's answers to the queries' routes, and return the next stage of each job; raises nothing.

        Args:
            answered: Calls to one level that have ended, with its answers.
        """
        routes = [query.route for call, _ in answered for query in call.job.active]
        logits = [timed.answer.logits for _, timed in answered]
        fed = iter(feed_all(routes, logits[0] if len(logits) == 1 else np.concatenate(logits)))
        stages: list[NextStage] = []
        for call, timed in answered:
            results = list(islice(fed, len(call.job.active)))
            try:
                stages.append(self._after_answer(call, timed, results))
            except Exception as error:  # one request must not stop the others
                self._log.exception("a request failed")
                stages.append(Internal(f"the request could not be routed: {type(error).__name__}: {error}"))
        return stages

    def after_failure(self, call: LevelCall, error: TidalError) -> NextStage:
        """Return the next stage after a failed call: a reply of the levels that ran, the next level, or the error.

        Args:
            call: Call that has failed.
            error: Why it has failed.
        """
        job = call.job
        named = level_error(self._manifest.levels[call.level], call.number, error)
        # The deadline left too little time, which is not a failure of the level.
        late = call.with_deadline and type(error) is Unavailable
        if not late:
            self._report_failure(call, error)
        if job.has_answers and (late or self.may_stop(job)):
            self._stop(job.active, "deadline" if late else "failure")
            return None
        fallback, job.fallback = job.fallback, None
        if (
            fallback is not None
            and self._parameters.on_level_failure == "answer"
            and self._in_time(job.request, fallback)
        ):
            self._metrics.degraded("deadline" if late else "failure", len(job.queries))
            self._restart(job, fallback)
            return fallback
        if not job.has_answers and self._parameters.on_first_level_failure == "next" and not job.skipped_first:
            following = None if job.queries[0].route.last else job.candidate.levels[1]
            if following is not None and self._in_time(job.request, following):
                self._metrics.degraded("failure", len(job.queries))
                self._restart(job, following)
                return following
        return named

    def _after_answer(self, call: LevelCall, timed: TimedAnswer, results: Sequence[bool | Internal]) -> NextStage:
        """Return a job's next stage after its routes have been fed, with these results."""
        job, answer = call.job, timed.answer
        may_stop = self.may_stop(job)
        importance = answer.importance or (None,) * len(job.active)
        fed, rerouted, broken = [], [], []
        fault: TidalError | None = None
        for query, result, received in zip(job.active, results, importance, strict=True):
            if isinstance(result, Internal):  # NaN, or a wrong shape
                broken.append(query)
                fault = result
                continue
            fed.append(query)
            if result:
                rerouted.append((query, received))
        if fault is not None and not may_stop:
            return self.after_failure(call, fault)
        if fault is not None:
            self._report_failure(call, fault)
            self._stop(broken, "failure")
        for query in fed:
            query.answered = query.encoded
        waited_s, took_s = timed.started - call.ready, timed.ended - timed.started
        if job.request.record is not None:
            model = self._manifest.levels[call.level].model
            job.request.record.ran(timed.started, timed.ended, timed.rows, level=call.number, model=model)
        self._metrics.level_answered(call.number, waited_s, took_s, [query.route.confidence for query in fed])
        job.active = [query for query, _ in rerouted]
        if not rerouted:
            return None
        level = job.active[0].route.level
        if not self._in_time(job.request, level):
            self._stop(job.active, "deadline")
            return None
        for query, received in rerouted:
            assert query.answered is not None  # it has just been fed
            pruned = self._tokenizers.encode_next(call.level, level, query.answered, received, job.candidate.pruning)
            query.encoded = pruned.encoded
            if received is not None:
                self._metrics.pruned(pruned.seen, pruned.removed)
        return level

    def _route(self, request: PendingRequest, candidate: Candidate, row: int, texts: QueryTexts) -> Route:
        key = request_key(request.request_id, texts)
        last_level = (request.options.max_level or len(self._manifest.levels)) - 1
        return Route(self._manifest, candidate, key, row, self._version, last_level=last_level)

    def _restart(self, job: CascadeJob, level: int) -> None:
        """Restart a job on one level alone."""
        job.candidate = single_level(job.candidate, level)
        job.skipped_first = True
        job.queries = [
            CascadeQuery(query.texts, self._route(job.request, job.candidate, row, query.texts))
            for row, query in enumerate(job.queries)
        ]
        job.active = job.queries

    def _may_skip(self, request: PendingRequest, candidate: Candidate) -> bool:
        """Return whether a request allows the candidate's last level, and leaves time for it."""
        last = candidate.levels[-1]
        return (request.options.max_level or last + 1) > last and self._in_time(request, last)

    def _in_time(self, request: PendingRequest, level: int) -> bool:
        """Return whether the time that remains is at least the level's mean latency."""
        deadline = request.deadline
        if deadline is None:
            return True
        return deadline - ANSWER_S - time.monotonic() >= self._manifest.levels[level].latency.mean / 1e3

    def _stop(self, queries: Iterable[CascadeQuery], cause: DegradationCause) -> None:
        count = 0
        for query in queries:
            query.route.stop()
            count += 1
        self._metrics.degraded(cause, count)

    def _report_failure(self, call: LevelCall, error: TidalError) -> None:
        """Count a level's failure, and log it at most every 30 s per level."""
        self._metrics.level_failed(call.number)
        now = time.monotonic()
        if now - self._logged.get(call.level, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._logged[call.level] = now
            self._log.warning(f"{level_error(self._manifest.levels[call.level], call.number, error)}")
