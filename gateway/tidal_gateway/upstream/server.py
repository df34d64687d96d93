"""One server behind the gateway: whether it is up, its models, and the calls that it has not answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from tidal_client.errors import RequestError
from tidal_gateway.upstream.channel import Channel
from tidal_gateway.upstream.described import ModelReport, read_models
from tidal_gateway.upstream.models import ModelFacts, model_facts
from tidal_gateway.upstream.status import ServeReport, read_report

#: Seconds between checks of a server that is up.
CHECK_S: Final = 1.0
#: Seconds between checks of a server that is down, or that restarts a model.
FAST_CHECK_S: Final = 0.1
#: A call that has waited this long may belong to a process that has died.
SUSPICIOUS_S: Final = 0.3
# A model whose process died is used again after this long if nothing reported its restart.
_UNREPORTED_S: Final = 3.0
_ANSWER_S: Final = 2.0
# Tasks are added while a server runs.
_REPORT_S: Final = 5.0

_log = logging.getLogger("tidal_gateway")


class ProcessDied(Exception):
    """The process that had the request has died, so the request has no answer and may be sent again."""


class Call:
    """A request that was sent to a server.

    Args:
        model: Name of the model.
        restarts: Number of restarts of the model's processes before it was sent.
        task: Task that waits for the answer.

    Attributes:
        sent: Time at which it was sent, by `time.monotonic()`, in seconds.
        begun: Whether a part of the answer has arrived.
        died: Whether its process has died.
    """

    __slots__ = ("begun", "died", "model", "restarts", "sent", "task")

    def __init__(self, model: str, restarts: int, task: asyncio.Task[Any] | None) -> None:
        self.model, self.restarts, self.task = model, restarts, task
        self.sent = time.monotonic()
        self.begun = self.died = False


class Server:
    """A server behind the gateway; `run` keeps its state current.

    Args:
        address: ``host:port`` of its gRPC endpoint.
        status: ``host:port`` of the status endpoint of its `tidal serve`; None if unknown.
        changed: Called when the server, or one of its models, becomes available.
    """

    def __init__(self, address: str, status: str | None, changed: Callable[[], None]) -> None:
        self.address, self.status = address, status
        self.channel = Channel(address)
        self.up = False
        self.reason = "not checked yet"
        self.models: dict[str, ModelFacts] = {}
        self.reports: Mapping[str, ModelReport] = {}
        self.calls: set[Call] = set()
        self._changed = changed
        self._report = ServeReport()
        self._reported = 0.0
        # Models whose process died: the time, the number of restarts then, and whether they were seen not ready since.
        self._suspended: dict[str, tuple[float, int, bool]] = {}
        self._described: dict[str, tuple[str, ...]] = {}
        self._reports_read = -_REPORT_S
        self._wake = asyncio.Event()

    def serves(self, model: str) -> bool:
        """Whether requests to a model can be sent here now."""
        interrupted = model in self._suspended or model in self._report.not_ready
        return self.up and model in self.models and not interrupted

    def restarts(self, model: str) -> int:
        """Number of restarts of a model's processes, of those that are known."""
        return self._report.restarts(model)

    def disconnected(self, reason: str) -> None:
        """Record that the connection broke or was refused: nothing is sent until a check succeeds."""
        if self.up:
            _log.warning("server %s is out: %s", self.address, reason)
        self.up, self.reason = False, reason
        self._wake.set()

    def process_died(self, call: Call) -> None:
        """Record that the process of a call's model died: the model gets nothing until it was restarted."""
        if call.model not in self._suspended:
            _log.warning("server %s: the process of model '%s' has died", self.address, call.model)
            self._suspended[call.model] = (time.monotonic(), call.restarts, False)
        self._wake.set()

    async def run(self) -> None:
        """Check the server until the task is cancelled."""
        while True:
            await self.check()
            next_check = time.monotonic() + (CHECK_S if self._is_steady() else FAST_CHECK_S)
            while (left_s := next_check - time.monotonic()) > 0 and not self._wake.is_set():
                try:
                    async with asyncio.timeout(min(left_s, FAST_CHECK_S)):
                        await self._wake.wait()
                except TimeoutError:
                    if self._overdue():
                        await self._read_report()
            self._wake.clear()

    async def check(self) -> None:
        """Check the server, its models and its supervisor once."""
        await self._read_report()
        try:
            if not await self.channel.ready(_ANSWER_S):
                raise RequestError("it is not live")
            await self._refresh()
        except RequestError as error:
            if self.up:
                _log.warning("server %s is out: %s", self.address, error)
            self.up, self.reason = False, str(error)
            return
        # The connection may have broken since the check began.
        was_up, self.up, self.reason = self.up, True, ""
        self._release()
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

    def _is_steady(self) -> bool:
        return self.up and not self._suspended and not self._report.not_ready

    def _overdue(self) -> bool:
        now = time.monotonic()
        return any(now - call.sent > SUSPICIOUS_S for call in self.calls)

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
        added = models.keys() - self.models.keys()
        changed = versions != self._described
        self.models, self._described = models, versions
        # A server that has just started reports its models a little later.
        lacking = not models.keys() <= self.reports.keys()
        if changed or lacking or time.monotonic() - self._reports_read >= _REPORT_S:
            await self.read_models()
        if added:
            self._changed()

    async def _read_report(self) -> None:
        """Read the supervisor's report and fail the calls whose process has been restarted since they were sent."""
        if self.status is None:
            return
        began = time.monotonic()
        report = await read_report(self.status)
        if report is None:
            return
        before, self._reported = self._reported, began
        recovered = self._report.not_ready - report.not_ready
        self._report = report
        if recovered:
            self._changed()
        for call in list(self.calls):
            # A call that was sent between two reports may be of the new process; only sending it again is harmless.
            certain = call.sent <= before or not call.begun
            if report.restarts(call.model) > call.restarts and certain and call.task is not None and not call.died:
                call.died = True
                call.task.cancel()

    def _release(self) -> None:
        """Use a model again whose process was restarted."""
        now = time.monotonic()
        for name, (died, restarts, gone) in list(self._suspended.items()):
            if name not in self.models or name in self._report.not_ready:
                self._suspended[name] = (died, restarts, True)
            elif gone or self.restarts(name) > restarts or now - died > _UNREPORTED_S:
                del self._suspended[name]
                self._changed()
