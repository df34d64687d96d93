"""The outages of one server and of its models.

This is the only owner of which processes crashed, which models are unavailable, and when each is retried.

The end of a process is observed in three ways: the connection to the server breaks, Triton or a model says so in an
error, or the supervisor reports a restart. All calls that one end cut off belong to one `Outage`. Nothing here reads a
clock: callers pass the time, by `time.monotonic()`, in seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final

from tidal_gateway.upstream.failures import Failure
from tidal_gateway.upstream.status import ServeReport

#: Shortest and longest time between two checks of what is out, in seconds.
MIN_CHECK_S: Final = 0.1
MAX_CHECK_S: Final = 1.0
#: First pauses until a model that nothing reported to be restarted is tried with one request, and the longest one.
DIED_PAUSE_S: Final = 3.0
REFUSED_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 30.0
# An outage that begins within this time after the end of the one before belongs to the same row.
_STABLE_S: Final = 30.0
_numbers = itertools.count(1)


@dataclass(slots=True)
class Outage:
    """Outage of a server or of a model.

    Attributes:
        model: The model; None for the whole server.
        since: Time of the first observation.
        restarts: Number of restarts that were reported before it.
        cause: Model whose process it is; differs from `model` where that calls others.
        died: Whether a process was observed to die; else it only refused requests.
        row: Number of outages of the same server or model right before this one.
        pause_s: Pause until the next trial, in seconds.
        listed: Whether the supervisor reports that it restarts the model.
        gone: Whether the model has been reported as unloaded since.
        tried: Time from which a single request tries the model.
        trying: Whether a request tries it now.
        ended: Time of its end; None while it lasts.
        number: Unique number.
    """

    model: str | None
    since: float
    restarts: int = 0
    cause: str = ""
    died: bool = True
    row: int = 0
    pause_s: float = DIED_PAUSE_S
    listed: bool = False
    gone: bool = False
    tried: float = 0.0
    trying: bool = False
    ended: float | None = None
    number: int = field(default_factory=lambda: next(_numbers))

    def check_after_s(self, now: float) -> float:
        """Seconds until the next check: a tenth of the time that it has lasted, longer after consecutive outages."""
        return min(MAX_CHECK_S, max(MIN_CHECK_S * 2.0 ** min(self.row, 4), (now - self.since) / 10))


class Outages:
    """Outages of one server and its models."""

    def __init__(self) -> None:
        self.report = ServeReport()
        # The latest outage of the server (None) and of each model, also after its end.
        self._latest: dict[str | None, Outage] = {}
        self._open: dict[str | None, Outage] = {}

    def of(self, model: str | None) -> Outage | None:
        """Return the current outage of a model, or of the server if `model` is None; None if there is none."""
        return self._open.get(model)

    def admits(self, model: str, now: float) -> bool:
        """Whether a request to a model may be sent: it is available, or one trial request is due."""
        if not self._open:
            return True
        if None in self._open:
            return False
        found = self._open.get(model)
        return found is None or (not found.listed and not found.trying and now >= found.tried)

    def sent(self, model: str) -> Outage | None:
        """Record a request that was admitted, and return the outage that it probes; None if there is none."""
        found = self._open.get(model) if self._open else None
        if found is not None:
            found.trying = True
        return found

    def released(self, tried: Outage | None) -> None:
        """Record that a request for which `sent` returned an outage ended without showing whether the model answers."""
        if tried is not None:
            tried.trying = False

    def answered(self, tried: Outage | None, now: float) -> None:
        """Record that a process answered a request for which `sent` returned an outage: it is over."""
        if tried is not None and tried.ended is None:
            self._end(tried, now)

    def failed(self, model: str, failure: Failure, sent: float, now: float, restarts: int = 0) -> Outage:
        """Record a call that a process did not answer, and return the outage that it belongs to.

        Args:
            model: Model that was called.
            failure: Kind and scope of the failure.
            sent: Time at which the call was sent.
            now: Time of the failure.
            restarts: Number of restarts that were reported when it was sent.
        """
        scope = None if failure.whole_server else model
        latest = self._latest.get(scope)
        if latest is not None and latest.ended is None:
            # A trial that failed; an earlier call changes nothing.
            if sent > latest.since and now >= latest.tried:
                latest.pause_s = min(MAX_PAUSE_S, latest.pause_s * 2)
                latest.tried, latest.trying = now + latest.pause_s, False
            return latest
        if latest is not None and sent < (latest.ended or 0.0):
            return latest
        found = self._begin(scope, now)
        found.died = failure.died
        if failure.model not in ("", model):
            found.cause, restarts = failure.model, self.report.restarts(failure.model)
        found.restarts = restarts
        found.pause_s = min(MAX_PAUSE_S, (DIED_PAUSE_S if failure.died else REFUSED_PAUSE_S) * 2.0**found.row)
        found.tried = now + found.pause_s
        return found

    def restarted(self, model: str, sent: float, now: float) -> Outage:
        """Return the outage of a call whose process the supervisor has restarted since it was sent."""
        for scope in (model, None):
            latest = self._latest.get(scope)
            if latest is not None and (latest.ended is None or sent < latest.ended):
                return latest
        found = self._begin(model, now)
        if model not in self.report.not_ready:
            self._end(found, now)
        else:
            found.listed = True
        return found

    def read(self, report: ServeReport, now: float) -> None:
        """Use a report of the supervisor: models being restarted are unavailable; restarted models are available."""
        self.report = report
        for model in report.not_ready:
            found = self._open.get(model) or self._begin(model, now)
            found.listed = True
        for scope, found in list(self._open.items()):
            if scope is None or scope in report.not_ready:
                continue
            if found.listed or report.restarts(found.cause) != found.restarts:
                self._end(found, now)

    def unreported(self, now: float) -> None:
        """Record that the supervisor does not report: restarted models are probed."""
        self.report = replace(self.report, not_ready=frozenset())
        for found in self._open.values():
            if found.listed:
                found.listed, found.tried = False, now

    def seen(self, models: Collection[str], began: float, now: float) -> None:
        """Use a check of the server that succeeded.

        Args:
            models: Models that it serves.
            began: Time at which the check began.
            now: Time at which it ended.
        """
        server = self._open.get(None)
        if server is not None and began > server.since:
            self._end(server, now)
        for model, found in list(self._open.items()):
            if model is None or found.listed or began < found.since:
                continue
            if model not in models:
                found.gone = True
            elif found.gone:
                self._end(found, now)

    def forget(self, model: str, now: float) -> None:
        """Record that a model was unloaded on purpose."""
        if (found := self._open.get(model)) is not None:
            self._end(found, now)

    def check_after_s(self, now: float, steady_s: float) -> float:
        """Seconds until the next check of the server; `steady_s` without an outage."""
        return min((each.check_after_s(now) for each in self._open.values()), default=steady_s)

    def _begin(self, scope: str | None, now: float) -> Outage:
        before = self._latest.get(scope)
        row = 0
        if before is not None and before.ended is not None and now - before.ended < _STABLE_S:
            row = before.row + 1
        restarts = self.report.restarts(scope or "")
        found = self._latest[scope] = self._open[scope] = Outage(scope, now, restarts, cause=scope or "", row=row)
        found.tried = now + found.pause_s
        return found

    def _end(self, found: Outage, now: float) -> None:
        found.ended, found.trying = now, False
        self._open.pop(found.model, None)
