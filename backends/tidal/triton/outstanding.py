"""Requests that have been accepted and not answered."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import Counter as Counts
from collections.abc import Iterable, Sequence

from tidal.access_log.record import RequestRecord
from tidal.access_log.writer import AccessLog
from tidal.errors import TidalError
from tidal.metrics import Counter, Deferred, Metrics
from tidal.tracing.tracing import Tracing
from tidal.triton.request import TritonRequest


class Outstanding:
    """Keeps weak references to accepted requests, counts their queries, and records each outcome.

    With weak references, a request that its service drops is deleted, which is how the drop is detected.

    Args:
        metrics: Metrics of the model.
        access_log: Request log, which gets one line per answer; None if there is none.
        tracing: Traces of requests; None if they are not traced.

    Attributes:
        tracing: Traces of requests; None if they are not traced.
        recorded: Whether requests have records, for the log or for their spans.
    """

    def __init__(self, metrics: Metrics, access_log: AccessLog | None = None, tracing: Tracing | None = None) -> None:
        self._metrics = metrics
        self._access_log = access_log
        self.tracing = tracing
        self.recorded = access_log is not None or tracing is not None
        self._lock = threading.Lock()
        self._open: dict[int, weakref.ref[TritonRequest]] = {}
        self._queries = 0
        self._in_flight = metrics.gauge("in_flight_queries", "Accepted queries without an answer")
        self._latency = metrics.histogram("request_seconds", "Time from acceptance to answer of accepted requests")
        self._missed = metrics.counter("deadline_missed_total", "Accepted requests not answered by their deadline")
        self._outcomes: dict[str, Counter] = {}
        self._returned: Deferred[tuple[list[float], list[str]]] = metrics.deferred("returned", self._record)

    @property
    def queries(self) -> int:
        """Number of rows of all open requests."""
        return self._queries

    @property
    def requests(self) -> int:
        """Number of requests whose answer has not been sent."""
        return len(self._open)

    def add(self, requests: Iterable[TritonRequest]) -> None:
        """Add accepted requests."""
        with self._lock:
            for request in requests:
                self._open[request.key] = weakref.ref(request)
                self._queries += request.rows
            self._in_flight.set(self._queries)

    def returning(self, endings: Sequence[tuple[TritonRequest, str]]) -> None:
        """Free the capacity of answered requests, and record their outcomes, before their answers are returned.

        Args:
            endings: Requests whose answers `execute` is about to return, each with `OK` or the code of the error.
        """
        now = time.monotonic()
        with self._lock:
            for request, _ in endings:
                self._open.pop(request.key, None)
                self._queries -= request.rows
            self._in_flight.set(self._queries)
        self._returned.add(([now - request.arrival for request, _ in endings], [code for _, code in endings]))
        for request, code in endings:
            if request.missed(code, now):
                self._missed.inc()
            if request.record is not None:
                self._ended(request.record, code, now)

    def answering(self, rows: int) -> None:
        """Free the capacity of an open request that is about to be answered.

        This happens before the answer is sent, so that a client which sends its next request after reading the answer
        finds the capacity free.

        Args:
            rows: Number of rows of the request.
        """
        with self._lock:
            self._queries -= rows
            self._in_flight.set(self._queries)

    def finished(self, key: int, code: str, latency_s: float, missed: bool, record: RequestRecord | None) -> None:
        """Record the answer to an open request.

        Args:
            key: Key of the request.
            code: `OK` or the code of the error.
            latency_s: Seconds from acceptance to answer.
            missed: Whether the request had a deadline and was not answered by then.
            record: Record of the request; None if there is neither a log nor tracing.
        """
        with self._lock:
            self._open.pop(key, None)
        if missed:
            self._missed.inc()
        self._latency.observe(latency_s)
        self._count(code)
        if record is not None:
            self._ended(record, code, record.arrival + latency_s)

    def refused(self, code: str, record: RequestRecord | None) -> None:
        """Record an error answer to a request that was not accepted."""
        self._count(code)
        if record is not None:
            self._ended(record, code, time.monotonic())

    def _ended(self, record: RequestRecord, code: str, answered: float) -> None:
        if self._access_log is not None:
            self._access_log.write(record, code, answered)
        if self.tracing is not None:
            self.tracing.end(record, code, answered)

    def _record(self, returned: tuple[list[float], list[str]]) -> None:
        latencies_s, codes = returned
        self._latency.observe_all(latencies_s)
        for code, count in Counts(codes).items():
            self._count(code, count)

    def _count(self, code: str, requests: int = 1) -> None:
        counter = self._outcomes.get(code)
        if counter is None:
            counter = self._metrics.counter("requests_total", "Requests answered, by outcome", code=code)
            self._outcomes[code] = counter
        counter.inc(requests)

    def idle_since(self, moment: float) -> list[TritonRequest]:
        """Return open requests that were accepted before a time, and have made no progress since.

        Args:
            moment: Time by `time.monotonic()`, in seconds.
        """
        idle = []
        with self._lock:
            for reference in self._open.values():
                request = reference()
                if request is None:
                    continue
                if request.arrival >= moment:  # requests are in order of arrival
                    break
                if request.progress < moment:
                    idle.append(request)
        return idle

    def past_deadline(self, now: float) -> tuple[list[TritonRequest], float]:
        """Return open requests whose deadline was before `now`, and the earliest other deadline (or infinity)."""
        late, earliest = [], math.inf
        with self._lock:
            for reference in self._open.values():
                request = reference()
                if request is None or request.deadline is None:
                    continue
                if request.deadline < now:
                    late.append(request)
                elif request.deadline < earliest:
                    earliest = request.deadline
        return late, earliest

    def fail_all(self, error: TidalError) -> None:
        """Answer every open request with `error`."""
        with self._lock:
            requests = [reference() for reference in self._open.values()]
        for request in requests:
            if request is not None:
                request.fail(error)
