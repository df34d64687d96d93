"""The requests that are accepted and not answered yet."""

from __future__ import annotations

import math
import threading
import time
import weakref

from tidal.access_log.record import RequestRecord
from tidal.access_log.writer import AccessLog
from tidal.errors import TidalError
from tidal.metrics import Counter, Metrics
from tidal.triton.request import TritonRequest


class Outstanding:
    """Holds accepted requests weakly, counts their queries, and records each one's outcome.

    A weak hold lets a request that its service dropped go, which is how that is noticed.

    Args:
        metrics: of the model.
        access_log: the request log, which gets a line for each answer; None when there is none.
    """

    def __init__(self, metrics: Metrics, access_log: AccessLog | None = None) -> None:
        self._metrics = metrics
        self.access_log = access_log
        self._lock = threading.Lock()
        self._open: dict[int, weakref.ref[TritonRequest]] = {}
        self._queries = 0
        self._in_flight = metrics.gauge("in_flight_queries", "Queries accepted and not answered yet")
        self._latency = metrics.histogram("request_seconds", "Time from acceptance to answer of accepted requests")
        self._missed = metrics.counter("deadline_missed_total", "Accepted requests not answered by their deadline")
        self._outcomes: dict[str, Counter] = {}

    @property
    def queries(self) -> int:
        """Rows of all open requests."""
        return self._queries

    @property
    def requests(self) -> int:
        """Requests whose answer is not out yet."""
        return len(self._open)

    def add(self, request: TritonRequest) -> None:
        """A request was accepted."""
        with self._lock:
            self._open[request.key] = weakref.ref(request)
            self._queries += request.rows
            self._in_flight.set(self._queries)

    def answering(self, rows: int) -> None:
        """An open request of so many rows is about to be answered.

        Its place is free before its answer is out: a client that sends its next request when it has read this answer
        must find it so.
        """
        with self._lock:
            self._queries -= rows
            self._in_flight.set(self._queries)

    def settled(self, key: int, code: str, latency_s: float, missed: bool, record: RequestRecord | None) -> None:
        """An open request was answered; `missed` when it had a deadline and got no answer, or none in time."""
        with self._lock:
            self._open.pop(key, None)
        if missed:
            self._missed.inc()
        self._latency.observe(latency_s)
        self._count(code)
        if record is not None and self.access_log is not None:
            self.access_log.write(record, code, record.arrival + latency_s)

    def refused(self, code: str, record: RequestRecord | None) -> None:
        """A request was answered with an error and never accepted."""
        self._count(code)
        if record is not None and self.access_log is not None:
            self.access_log.write(record, code, time.monotonic())

    def _count(self, code: str) -> None:
        counter = self._outcomes.get(code)
        if counter is None:
            counter = self._metrics.counter("requests_total", "Requests answered, by outcome", code=code)
            self._outcomes[code] = counter
        counter.inc()

    def idle_since(self, moment: float) -> list[TritonRequest]:
        """Open requests accepted, and last worked on, before `moment`.

        The oldest stand first, so a short look suffices.
        """
        found = []
        with self._lock:
            for reference in self._open.values():
                request = reference()
                if request is None:
                    continue
                if request.arrival >= moment:
                    break
                if request.progress < moment:
                    found.append(request)
        return found

    def past_deadline(self, now: float) -> tuple[list[TritonRequest], float]:
        """Open requests whose deadline was before `now`, and the earliest deadline of the others (or infinity)."""
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
