"""One server behind the gateway: whether it is up, its models, and the calls that it has not answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from tidal_client.errors import RequestError
from tidal_gateway.upstream.calls import Call
from tidal_gateway.upstream.channel import Channel
from tidal_gateway.upstream.described import DescribedModel, read_models
from tidal_gateway.upstream.failures import Failure
from tidal_gateway.upstream.models import ModelFacts, model_facts
from tidal_gateway.upstream.outages import MIN_CHECK_S, Outage, Outages
from tidal_gateway.upstream.status import read_report

#: Seconds between checks while nothing is out.
CHECK_S: Final = 1.0
#: A call that has waited this long may belong to a process that has died.
SUSPICIOUS_S: Final = 0.3
#: A server that is away for longer than this many seconds, or a model whose process died, is not being restarted if
#: nothing reports that it is.
RESTART_S: Final = 60.0
#: A model that is missing for this long, and that nothing restarts, was unloaded.
UNLOADED_S: Final = 1.0
_ANSWER_S: Final = 2.0
# A supervisor that has not answered for this long is not trusted to report the end of a restart.
_SILENT_S: Final = 5.0
# Tasks are added while a server runs.
_REPORT_S: Final = 5.0

_log = logging.getLogger("tidal_gateway")


class Server:
    """A server behind the gateway; `run` keeps its state current.

    Args:
        address: ``host:port`` of its gRPC endpoint.
        status: ``host:port`` of the status endpoint of its `tidal serve`; None if unknown.
        changed: Called when the server, or one of its models, becomes available, or is not expected to.

    Attributes:
        up: Whether it answers and accepts requests.
        reason: Why it is not up.
        models: Models that it serves, or served before it went down.
        known: The same, and models that are missing but were not unloaded for certain.
        calls: Calls that it has not answered.
        outages: Outages of the server and of its models.
    """

    def __init__(self, address: str, status: str | None, changed: Callable[[], None]) -> None:
        self.address, self.status = address, status
        self.channel = Channel(address)
        self.up = False
        self.reason = "not checked yet"
        self.models: dict[str, ModelFacts] = {}
        self.known: dict[str, ModelFacts] = {}
        self.reports: Mapping[str, DescribedModel] = {}
        self.calls: set[Call] = set()
        self.outages = Outages()
        self._changed = changed
        # Times of the last report, and of the last check in which the server was up.
        self._reported: float | None = None
        self._report_answers = False
        self._last_up = time.monotonic()
        # Models that are missing since these times, and were not unloaded for certain.
        self._missing: dict[str, float] = {}
        self._described: dict[str, tuple[str, ...]] = {}
        self._reports_read = -_REPORT_S
        self._wake = asyncio.Event()

    def serves(self, model: str) -> bool:
        """Whether a request to a model can be sent here now."""
        return self.up and model in self.models and self.outages.admits(model, time.monotonic())

    def expects(self, model: str) -> bool:
        """Whether a model that cannot be used here now is likely to come back."""
        now = time.monotonic()
        if not self.up:
            return model in self.known and (self._starts() or now - self._last_up < RESTART_S)
        found = self.outages.of(model)
        returns = found is not None and (found.listed or (found.died and now - found.since < RESTART_S))
        return model in self.models or model in self._missing or returns

    def had(self, model: str) -> bool:
        """Whether the server is down and had a model before."""
        return not self.up and model in self.known

    def restarts(self, model: str) -> int:
        """Number of restarts of a model's processes, of those that are known."""
        return self.outages.report.restarts(model)

    def send(self, model: str) -> Call:
        """Record that a request is sent by the current task; `answered`, `failed` or `ended` follows."""
        call = Call(model, self.restarts(model), asyncio.current_task(), self.outages.sent(model))
        self.calls.add(call)
        return call

    def answered(self, call: Call) -> None:
        """Record that the process of a call answered."""
        if call.tried is not None:
            self.outages.answered(call.tried, time.monotonic())
            self._changed()

    def ended(self, call: Call) -> None:
        """Record that nobody waits for a call any more."""
        self.calls.discard(call)
        if call.tried is not None:
            self.outages.released(call.tried)

    def failed(self, call: Call, failure: Failure, reason: str) -> Outage:
        """Record that the process of a call died or refuses requests, and return the outage: it gets nothing now."""
        self.calls.discard(call)
        before = self.outages.of(call.model)
        outage = self.outages.failed(call.model, failure, call.sent, time.monotonic(), call.restarts)
        if outage is self.outages.of(None):
            self._down(reason)
        elif outage is self.outages.of(call.model) and before is None:
            _log.warning("server %s: model '%s' is out: %s", self.address, call.model, reason)
            if failure.died and not self._report_answers:
                # Nothing else reports which calls the dead process had, and Triton never answers them.
                for each in list(self.calls):
                    if each.model == call.model and not each.begun:
                        _lose(each, outage)
        self._wake.set()
        return outage

    async def run(self) -> None:
        """Check the server until the task is cancelled."""
        while True:
            await self.check()
            next_check = self._next_check()
            while (left_s := next_check - time.monotonic()) > 0:
                try:
                    async with asyncio.timeout(min(left_s, MIN_CHECK_S)):
                        await self._wake.wait()
                except TimeoutError:
                    if self._overdue():
                        await self._read_report()
                else:
                    self._wake.clear()
                    next_check = min(next_check, self._next_check())

    async def check(self) -> None:
        """Check the server, its models and its supervisor once."""
        began = time.monotonic()
        await self._read_report()
        try:
            if not await self.channel.ready(_ANSWER_S):
                raise RequestError("it is not live")
            if self._report_answers and self.outages.report.ending:
                raise RequestError("it is stopping")
            await self._refresh()
        except RequestError as error:
            self._down(str(error))
            self._changed()
            return
        self.outages.seen(self.models, began, time.monotonic())
        self._find_unloaded()
        if self.outages.of(None) is not None:  # the connection broke since the check began
            return
        self._last_up = time.monotonic()
        was_up, self.up, self.reason = self.up, True, ""
        if not was_up:
            _log.info("server %s is in: %d models", self.address, len(self.models))
        self._changed()

    async def read_models(self) -> None:
        """Read what the models are."""
        if self.status is None:
            return
        self._reports_read = time.monotonic()
        found = await read_models(self.status)
        if found is not None:
            self.reports = found

    async def close(self) -> None:
        """Close the connection."""
        await self.channel.close()

    def _down(self, reason: str) -> None:
        if self.up:
            _log.warning("server %s is out: %s", self.address, reason)
        self.up, self.reason = False, reason

    def _next_check(self) -> float:
        now = time.monotonic()
        if self._missing.keys() - self.outages.report.not_ready and not self._starts():
            return now + MIN_CHECK_S
        steady_s = CHECK_S if self.up else min(CHECK_S, max(MIN_CHECK_S, (now - self._last_up) / 10))
        return now + self.outages.check_after_s(now, steady_s)

    def _starts(self) -> bool:
        """Whether the latest report says that the server is starting and loading its models one by one."""
        recent = self._reported is not None and time.monotonic() - self._reported <= _SILENT_S
        return recent and self.outages.report.coming

    def _overdue(self) -> bool:
        now = time.monotonic()
        return any(now - call.sent > SUSPICIOUS_S for call in self.calls)

    def _find_unloaded(self) -> None:
        """Forget models that are missing for so long that their supervisor would have reported a restart."""
        now = time.monotonic()
        for name, since in list(self._missing.items()):
            if name in self.models:
                del self._missing[name]
            elif name in self.outages.report.not_ready or self._starts():
                self._missing[name] = now
            elif now - since >= UNLOADED_S:
                del self._missing[name]
                del self.known[name]
                if self._report_answers:
                    self.outages.forget(name, now)

    async def _refresh(self) -> None:
        """Read which models serve, and describe those that are new."""
        statistics = await self.channel.statistics(_ANSWER_S)
        versions: dict[str, tuple[str, ...]] = {}
        for row in statistics.model_stats:
            versions[row.name] = (*versions.get(row.name, ()), row.version)
        models = {}
        for name, own in versions.items():
            if self._described.get(name) == own and name in self.models:
                models[name] = self.models[name]
                continue
            try:
                metadata = await self.channel.metadata(name, "", _ANSWER_S)
                models[name] = model_facts(metadata, await self.channel.config(name, "", _ANSWER_S), own)
            except RequestError:  # it was unloaded between the calls
                continue
        for name in self.models.keys() - models.keys():
            self._missing.setdefault(name, time.monotonic())
        changed = versions != self._described
        self.models, self._described = models, versions
        self.known |= models
        # A server that has just started reports its models a little later.
        lacking = not models.keys() <= self.reports.keys()
        if changed or lacking or time.monotonic() - self._reports_read >= _REPORT_S:
            await self.read_models()

    async def _read_report(self) -> None:
        """Read the supervisor's report and fail the calls whose process has been restarted since they were sent."""
        if self.status is None:
            return
        began = time.monotonic()
        report = await read_report(self.status)
        self._report_answers = report is not None
        if report is None:
            if self._reported is not None and began - self._reported > _SILENT_S:
                self.outages.unreported(time.monotonic())
            return
        before, self._reported = self._reported, began
        now = time.monotonic()
        self.outages.read(report, now)
        for call in list(self.calls):
            if before is None:  # until now nothing was known of restarts
                call.restarts = report.restarts(call.model)
            # A call that was sent between two reports may be of the new process; only sending it again is harmless.
            elif report.restarts(call.model) != call.restarts and (call.sent <= before or not call.begun):
                _lose(call, self.outages.restarted(call.model, call.sent, now))
        self._changed()


def _lose(call: Call, outage: Outage) -> None:
    """End a call whose process has died, unless its consumer has a part of the answer in hand."""
    if call.task is not None and call.died is None:
        call.died = outage
        call.task.cancel()
