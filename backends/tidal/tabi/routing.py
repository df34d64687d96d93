"""What follows for a request from a level's answer or failure: a further level, its answer, or an error."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from tidal.errors import Internal, TidalError, Unavailable
from tidal.requests import PendingRequest
from tidal.tabi.asking import Asked
from tidal.tabi.calling import named
from tidal.tabi.choice import alone
from tidal.tabi.dispatcher import request_key
from tidal.tabi.jobs import Job, Query, Visit
from tidal.tabi.manifest import Candidate, TabiManifest
from tidal.tabi.metrics import Cause, TabiMetrics
from tidal.tabi.parameters import TabiParameters
from tidal.tabi.reading import Readers, Texts, read_texts
from tidal.tabi.route import Route

# A smaller level's answer is sent this long before the deadline, so that it is out in time.
ANSWER_S = 0.003
# A level that keeps failing is not logged each time.
_LOG_EVERY_S = 30.0

# Index of the level that the queries which go on go to; None: the request can be answered; or why it cannot be.
Following = int | None | TidalError


class Routing:
    """Opens requests as jobs, and says what follows for them.

    Args:
        manifest: of the cascade.
        version: of the cascade.
        parameters: of its config.pbtxt.
        readers: its tokenizers.
        metrics: what is counted.
        log: of the model.
    """

    def __init__(
        self,
        manifest: TabiManifest,
        version: int,
        parameters: TabiParameters,
        readers: Readers,
        metrics: TabiMetrics,
        log: logging.Logger,
    ) -> None:
        self._manifest = manifest
        self._version = version
        self._parameters = parameters
        self._readers = readers
        self._metrics = metrics
        self._log = log
        self._logged: dict[int, float] = {}

    def open(self, request: PendingRequest, candidate: Candidate) -> Job:
        """A request as a job, which goes to the candidate's first level next.

        Raises:
            InvalidArgument: names the input, what came and what is accepted.
        """
        texts = read_texts(request.inputs, pairs=self._manifest.pairs)
        queries = [Query(each, self._route(request, candidate, row, each)) for row, each in enumerate(texts)]
        return Job(request, candidate, queries, going=queries)

    def read(self, visit: Visit) -> None:
        """Tokenise a visit's queries, where its level is the first that they come to.

        Raises:
            InvalidArgument: a text cannot be accepted; names the input and the row.
        """
        queries = visit.job.going
        if queries[0].reading is None:
            readings = self._readers.first(visit.level, [query.texts for query in queries])
            for query, reading in zip(queries, readings, strict=True):
                query.reading = reading
            if (record := visit.job.request.record) is not None:
                record.tokens = sum(len(reading.ids) for reading in readings)

    def wants_attention(self, visit: Visit) -> bool:
        """Whether a visit's queries may go on and be pruned for that."""
        return visit.job.candidate.pruning is not None and not visit.job.going[0].route.last

    def may_stop(self, job: Job) -> bool:
        """Whether a job gets the answer of the levels that ran, where a further one fails."""
        return job.has_answers and self._parameters.on_level_failure == "answer"

    def answered(self, visit: Visit, asked: Asked) -> Following:
        """A level has answered: feed its answer to the queries' ways."""
        job, answer = visit.job, asked.answer
        may_stop = self.may_stop(job)
        importance = answer.importance or (None,) * len(job.going)
        fed, onward, broken = [], [], []
        fault: TidalError | None = None
        for query, logits, received in zip(job.going, answer.logits, importance, strict=True):
            try:
                goes_on = query.route.feed(logits)
            except Internal as error:  # no numbers, or too few
                broken.append(query)
                fault = error
                continue
            fed.append(query)
            if goes_on:
                onward.append((query, received))
        if fault is not None and not may_stop:
            return self.failed(visit, fault)
        if fault is not None:
            self._tell(visit, fault)
            self._stop(broken, "failure")
        for query in fed:
            query.read = query.reading
        waited_s, took_s = asked.began - visit.ready, asked.ended - asked.began
        if job.request.record is not None:
            job.request.record.ran(asked.began, asked.ended)
        self._metrics.level_answered(visit.number, waited_s, took_s, [query.route.confidence for query in fed])
        job.going = [query for query, _ in onward]
        if not onward:
            return None
        level = job.going[0].route.level
        if not self._in_time(job, level):
            self._stop(job.going, "deadline")
            return None
        for query, received in onward:
            assert query.read is not None  # it has just been fed
            pruned = self._readers.next(visit.level, level, query.read, received, job.candidate.pruning)
            query.reading = pruned.encoded
            if received is not None:
                self._metrics.pruned(pruned.seen, pruned.removed)
        return level

    def failed(self, visit: Visit, error: TidalError) -> Following:
        """A level has not answered: the answer of those that ran, the next level alone, or the error."""
        job = visit.job
        told = named(self._manifest.levels[visit.level], visit.number, error)
        # For the time that was left, which is no failure of the level.
        late = visit.hurried and type(error) is Unavailable
        if not late:
            self._tell(visit, error)
        if job.has_answers and (late or self.may_stop(job)):
            self._stop(job.going, "deadline" if late else "failure")
            return None
        if not job.has_answers and self._parameters.on_first_level_failure == "next" and not job.skipped_first:
            beyond = None if job.queries[0].route.last else job.candidate.levels[1]
            if beyond is not None and self._in_time(job, beyond):
                self._metrics.degraded("failure", len(job.queries))
                self._start_over(job, beyond)
                return beyond
        return told

    def _route(self, request: PendingRequest, candidate: Candidate, row: int, texts: Texts) -> Route:
        key = request_key(request.request_id, texts)
        last_level = (request.options.max_level or len(self._manifest.levels)) - 1
        return Route(self._manifest, candidate, key, row, self._version, last_level=last_level)

    def _start_over(self, job: Job, level: int) -> None:
        """Have a job answered by one level alone."""
        job.candidate = alone(job.candidate, level)
        job.skipped_first = True
        job.queries = [
            Query(query.texts, self._route(job.request, job.candidate, row, query.texts))
            for row, query in enumerate(job.queries)
        ]
        job.going = job.queries

    def _in_time(self, job: Job, level: int) -> bool:
        """Whether a level's mean latency fits into what remains."""
        deadline = job.request.deadline
        if deadline is None:
            return True
        return deadline - ANSWER_S - time.monotonic() >= self._manifest.levels[level].latency.mean / 1e3

    def _stop(self, queries: Iterable[Query], cause: Cause) -> None:
        count = 0
        for query in queries:
            query.route.stop()
            count += 1
        self._metrics.degraded(cause, count)

    def _tell(self, visit: Visit, error: TidalError) -> None:
        self._metrics.level_failed(visit.number)
        now = time.monotonic()
        if now - self._logged.get(visit.level, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._logged[visit.level] = now
            self._log.warning(f"{named(self._manifest.levels[visit.level], visit.number, error)}")
