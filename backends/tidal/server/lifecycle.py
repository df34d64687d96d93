"""Starting, supervising and stopping tritonserver, and restarting it where it ended by itself."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

import psutil

from tidal.catalog.graph import ModelGraph
from tidal.errors import Internal, TidalError
from tidal.server.backend_directory import assemble, python_backends
from tidal.server.backoff import STABLE_AFTER_S, Restarts
from tidal.server.endpoints import choose_endpoints
from tidal.server.extra_options import grpc_tls
from tidal.server.gateway_process import GatewayProcess
from tidal.server.launch import Launch, Selection, select_models
from tidal.server.process import ServerProcess
from tidal.server.progress import LogReader, StartProgress, follow
from tidal.server.readiness import WantedModels
from tidal.server.readiness_watch import ReadinessWatch
from tidal.server.ready_report import ReadyReport
from tidal.server.reasons import sentence
from tidal.server.signals import Signals
from tidal.server.starting import StartPlan, clear_unfinished_changes, load_later, plan_start
from tidal.server.state import ServerState, write_state
from tidal.server.status import ServeStatus
from tidal.server.supervision import Supervisor

_log = logging.getLogger("tidal.serve")

Ready = Callable[[ReadyReport], None]


class ServeOutcome(Enum):
    """How `tidal serve` ended."""

    CLEANLY = "ended cleanly"
    NOT_STARTED = "stopped before it served"
    BY_ITSELF = "tritonserver ended by itself"
    CUT_SHORT = "tritonserver gave up on requests in flight, or was killed"


@dataclass(slots=True)
class ServerLifecycle:
    """One run of `tidal serve`, which may restart tritonserver.

    Attributes:
        launch: Everything that each tritonserver is started with.
        models: Names of the models to serve; empty for all published ones.
        log: File for Triton's log; None for stderr.
        signals: Signals that request a stop.
        status: Readiness that the probes report.
        strict: Whether every model has to load; else the models that load are served.
        gateway: Gateway beside tritonserver, which ends before it; None for none.
        restarts: Number of restarts by the supervisor, by model.
        wanted: Models that have to answer for the server to be ready.
        last_end: End of the last tritonserver that ended by itself, with its time; None if none did.
    """

    launch: Launch
    models: tuple[str, ...]
    log: Path | None
    signals: Signals
    status: ServeStatus
    strict: bool
    gateway: GatewayProcess | None = None
    restarts: dict[str, int] = field(default_factory=dict)
    wanted: WantedModels = field(default_factory=WantedModels)
    last_end: str | None = None

    def first(self, plan: StartPlan, selection: Selection, ready: Ready) -> ServeOutcome:
        """Serve with the first tritonserver until it ends or a stop is requested.

        Args:
            plan: Models by when they are loaded.
            selection: Models to serve.
            ready: Called once when it serves.

        Raises:
            TidalError: It does not start, no model loads, or with `strict` one does not.
        """
        return self._run(plan, selection, ready, 0)

    def restart(self, max_restarts: int) -> ServeOutcome:
        """Restart tritonserver until a stop is requested, or it has ended by itself too often in a row."""
        return restart_while_failing(self._attempt, max_restarts, self.signals.stop.wait)

    def _attempt(self, number: int) -> tuple[ServeOutcome, float]:
        """Serve once more, with what is published now; return how that ended, and for how many seconds it served."""
        began, served = time.monotonic(), float("inf")
        _log.warning("starting tritonserver again (restart %d)", number)

        def ready(report: ReadyReport) -> None:
            nonlocal served
            served = time.monotonic()
            names = ", ".join(name for name, *_ in report.models)
            _log.warning("%s: served again after %.1f s", names, served - began)

        repository, endpoints = self.launch.repository, self.launch.endpoints
        try:
            graph = ModelGraph.read(repository)
            selection = select_models(graph, self.models)
            plan = plan_start(graph, names_of(selection), strict=self.strict)
            # Another server may use the ports by now, and files that nobody has open may have been cleaned up.
            choose_endpoints(endpoints.host, endpoints.http, endpoints.grpc, endpoints.metrics)
            assemble(self.launch.backend_directory, self.launch.installation)
            clear_unfinished_changes(repository, plan.models)
            ended = self._run(plan, selection, ready, number)
        except (TidalError, OSError) as error:
            _log.error("tritonserver does not start again: %s", error)
            ended = ServeOutcome.BY_ITSELF
        return ended, max(0.0, time.monotonic() - served)

    def _run(self, plan: StartPlan, selection: Selection, ready: Ready, number: int) -> ServeOutcome:
        server = ServerProcess(dataclasses.replace(self.launch, models=plan.by_server), self.log, append=number > 0)
        try:
            served = self._start(server, plan, selection, number)
            return served if isinstance(served, ServeOutcome) else self._serve(server, *served, ready)
        finally:
            server.end(self.signals.at_once)

    def _start(
        self, server: ServerProcess, plan: StartPlan, selection: Selection, number: int
    ) -> tuple[ServerState, ReadyReport] | ServeOutcome:
        launch, names = server.launch, names_of(selection)
        progress = StartProgress(plan.models, lambda model: ModelGraph.read(launch.repository).dependents(model, names))
        _log.info("loading %d models; Triton's log: %s", len(plan.models), server.log or "here")
        for name, reason in plan.refused:
            progress.failure(name, reason)
        reader = LogReader(server.log, server.log_begins)

        def loading() -> None:
            follow(progress, reader.lines())
            progress.waiting()

        if not server.wait_live(self.signals.stop, loading):
            server.kill()
            return ServeOutcome.CLEANLY if number else ServeOutcome.NOT_STARTED
        for row in server.failed_models():
            progress.failure(row.name, sentence(row.reason))
        for name in sorted(set(plan.by_server) - progress.failed.keys()):  # where the log does not report it
            progress.succeeded(name)
        if not load_later(server.control, launch.repository, plan, self.signals.stop, progress, strict=self.strict):
            if number:  # clients know the ports, and some models already answer
                return self._end(server)
            server.kill()
            return ServeOutcome.NOT_STARTED
        if progress.failed and (self.strict or not progress.loaded):
            server.kill()
            raise Internal("; ".join(progress.sentence(name) for name in progress.failed))
        self.wanted = self.wanted.on_new_server(plan.models, progress.failed)
        address = launch.endpoints.address
        state = ServerState(
            http=address(launch.endpoints.http),
            grpc=address(launch.endpoints.grpc),
            metrics=address(launch.endpoints.metrics),
            grpc_tls=grpc_tls(launch.extra),
            status=launch.endpoints.status_address,
            key=launch.key,
            pid=os.getpid(),
            pid_started=psutil.Process().create_time(),
            server_pid=server.pid,
            version=server.control.version(),
            repository=launch.repository,
            log=server.log,
            gateway=None if self.gateway is None else self.gateway.url,
            gateway_log=None if self.gateway is None else self.gateway.log,
            server_restarts=number,
            last_end=self.last_end,
            restarts=dict(self.restarts),
        )
        return state, ReadyReport.of(state, launch, server.control, selection, progress.failed)

    def _serve(self, server: ServerProcess, state: ServerState, report: ReadyReport, ready: Ready) -> ServeOutcome:
        self.status.restarted(state.server_restarts)
        lost = False
        with self._supervised(server, state):
            write_state(state)
            ready(report)
            while not lost and not self.signals.stop.wait(0.2):
                lost = server.exit_status() is not None
            if lost:
                self._report_exit(server, state)
        if not lost:
            return self._end(server)
        self._write_restarting(state)  # again: the supervisor may have written what it saw before
        return ServeOutcome.BY_ITSELF

    def _report_exit(self, server: ServerProcess, state: ServerState) -> None:
        """Record and report that tritonserver ended by itself."""
        how = server.ending()
        where = f"; its log: {server.log}" if server.log else ""
        _log.error("tritonserver ended by itself (%s)%s", how, where)
        self.last_end = f"{how} at {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        self._write_restarting(state)
        self.status.restarting(f"tritonserver ended by itself ({how}) and is restarting")

    def _write_restarting(self, state: ServerState) -> None:
        changed = {"restarting": f"it ended by itself, {self.last_end}", "last_end": self.last_end}
        write_state(state.model_copy(update={**changed, "restarts": dict(self.restarts)}))

    def _end(self, server: ServerProcess) -> ServeOutcome:
        self.status.ending()
        if self.gateway is not None:
            self.gateway.stop(self.signals.at_once)
        return _end(server, self.signals)

    @contextmanager
    def _supervised(self, server: ServerProcess, state: ServerState) -> Iterator[None]:
        """Restart models whose stubs crash, and evaluate readiness, until the block ends."""
        ended = threading.Event()

        def restarted() -> None:
            if not ended.is_set():
                write_state(state.model_copy(update={"restarts": dict(self.restarts)}))

        repository = server.launch.repository
        supervisor = Supervisor(server.control, server.pid, repository, python_backends(), self.restarts, restarted)
        watch = ReadinessWatch(server.control, supervisor, self.status, self.wanted)
        self.status.restarting_models(self.restarts, lambda: supervisor.failing_models().interrupted)
        self.status.serving(watch.poll() or {})
        threads = [
            threading.Thread(target=each.run, args=(ended,), name=name, daemon=True)
            for name, each in (("supervisor", supervisor), ("readiness", watch))
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if not self.signals.stop.is_set():
                # The next server has the same addresses: no call meant for this one may reach it. Calls to a server
                # that has ended return at once.
                for thread in threads:
                    thread.join()
            self.wanted = watch.wanted


def restart_while_failing(
    attempt: Callable[[int], tuple[ServeOutcome, float]],
    max_restarts: int,
    wait: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
) -> ServeOutcome:
    """Restart a server that ended by itself, with growing pauses, until it does so too often in a row.

    Args:
        attempt: Serves once. Its argument is the number of the restart, from 1; it returns how that ended, and for how
            many seconds it served.
        max_restarts: Maximum number of consecutive restarts; the count starts again after `STABLE_AFTER_S` of serving.
        wait: Waits for so many seconds; returns True where a stop is requested.
        clock: Returns the time in seconds.
    """
    restarts, number = Restarts(), 0
    while restarts.count < max_restarts:
        if wait(restarts.pause_s(clock())):
            return ServeOutcome.CLEANLY
        number += 1
        ended, served_s = attempt(number)
        if ended is not ServeOutcome.BY_ITSELF:
            return ended
        restarts = Restarts() if served_s >= STABLE_AFTER_S else restarts.restarted(clock())
    if max_restarts:
        _log.error("tritonserver ended by itself again after %d restarts in a row: giving up", max_restarts)
    return ServeOutcome.BY_ITSELF


def names_of(selection: Selection) -> list[str]:
    """Names of the models to serve."""
    return [entry.name for entry in selection.served]


def _end(server: ServerProcess, signals: Signals) -> ServeOutcome:
    began = time.monotonic()
    if not server.end(signals.at_once):
        if server.was_idle:
            _log.info("tritonserver had unloaded every model and did not end: killed it")
            return ServeOutcome.CLEANLY
        _log.error("tritonserver did not end within %.0f s and was killed", time.monotonic() - began)
        return ServeOutcome.CUT_SHORT
    if server.exit_status() != 0:
        # At its own exit timeout it ends with status 1 and leaves requests in flight unanswered.
        _log.error("tritonserver did not end cleanly (%s): requests may be unanswered", server.ending())
        return ServeOutcome.CUT_SHORT
    return ServeOutcome.CLEANLY
