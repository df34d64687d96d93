"""One run of `tidal serve`, from checks to the last file removed."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType

import psutil

from tidal.errors import Internal, TidalError
from tidal.server.backend_directory import assemble, python_backends
from tidal.server.backoff import Restarts
from tidal.server.endpoints import choose_endpoints
from tidal.server.guardian import Guardian
from tidal.server.installation import find_installation
from tidal.server.launch import Launch, Selection, check_key, check_path, select_models
from tidal.server.process import KILL_AFTER_S, ServerProcess
from tidal.server.ready_report import ReadyReport
from tidal.server.reasons import sentence
from tidal.server.starting import StartPlan, forget_changes, load_rest, plan_start
from tidal.server.state import ServerState, running_servers, state_folder, write_state
from tidal.server.supervision import Supervisor

# Free ports differ from run to run, and each would leave a log.
_KEPT_LOGS = 10

_log = logging.getLogger("tidal.serve")


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chose; a port 0 means a free one."""

    repository: Path
    models: tuple[str, ...]
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    exit_timeout_s: int
    server_restarts: int
    open_admin: bool
    verbose: bool
    extra: tuple[str, ...]


class Ended(Enum):
    """How a run ended."""

    CLEANLY = "ended cleanly"
    NOT_STARTED = "stopped before it served"
    BY_ITSELF = "tritonserver ended by itself"
    CUT_SHORT = "tritonserver gave up on requests in flight, or was killed"


class _Signals:
    """SIGINT, SIGTERM and SIGHUP as events: the first asks for an end, the second for an end at once."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.at_once = threading.Event()

    def receive(self, number: int, _frame: FrameType | None) -> None:
        if self.stop.is_set():
            self.at_once.set()
        self.stop.set()


def serve_until_ended(options: Options, ready: Callable[[ReadyReport], None]) -> Ended:
    """Serve until a signal comes, or the server ends too often by itself; then leave nothing behind.

    A server that ended by itself after it had served is started again, with everything that is published then.

    Args:
        options: what to serve and where.
        ready: called once when every model serves.

    Returns:
        How it ended.

    Raises:
        TidalError: it cannot serve: what is missing or taken, or which model does not load and why.
    """
    installation = find_installation()
    selection = select_models(options.repository, options.models)
    plan = plan_start(options.repository, _names(selection))
    key = None if options.open_admin else check_key(os.environ.get("TIDAL_ADMIN_KEY"))
    endpoints = choose_endpoints(options.host, options.http_port, options.grpc_port, options.metrics_port)
    # Not before the ports are found free: a start that fails must not touch what another server goes by.
    forget_changes(options.repository, _names(selection))
    state_folder()
    prefix = f"tidal_{os.getpid()}_{os.urandom(4).hex()}_"
    check_path(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix="tidal-serve-"))
    guardian = Guardian(prefix, options.exit_timeout_s + KILL_AFTER_S, folder)
    try:
        launch = Launch(
            installation=installation,
            repository=options.repository.resolve(),
            backend_directory=assemble(folder / "backends", installation),
            models=plan.by_server,
            endpoints=endpoints,
            shm_prefix=prefix,
            key=key,
            exit_timeout_s=options.exit_timeout_s,
            extra=options.extra,
        )
        log = None if options.verbose else _log_file(endpoints.http)
        with _handled_signals() as signals:
            life = _Life(options, launch, log, signals)
            ended = life.run(plan, selection, ready)
            return life.run_again() if ended is Ended.BY_ITSELF else ended
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        guardian.dismiss()


@dataclass(frozen=True, slots=True)
class _Life:
    """What stays the same while one tritonserver follows another."""

    options: Options
    launch: Launch
    log: Path | None
    signals: _Signals

    def run(
        self, plan: StartPlan, selection: Selection, ready: Callable[[ReadyReport], None], restarts: int = 0
    ) -> Ended:
        """Serve with one tritonserver, from its start to the last process of it ended.

        Raises:
            TidalError: it does not start, or a model does not load.
        """
        launch = dataclasses.replace(self.launch, models=plan.by_server)
        server = ServerProcess(launch, self.log, append=restarts > 0)
        if sys.stderr.isatty():
            _log.info("loading %s; Triton's log: %s", ", ".join(_names(selection)), server.log or "here")
        try:
            served = _start(server, plan, selection, self.signals.stop)
            if served is None:
                server.end(_set_event())  # nobody uses it yet, so nothing is in flight
                return Ended.NOT_STARTED
            state, report = served
            return _serve(server, state.model_copy(update={"server_restarts": restarts}), report, ready, self.signals)
        finally:
            server.end(self.signals.at_once)

    def run_again(self) -> Ended:
        """Serve with one tritonserver after the other, until one was asked to end, or too many end by themselves."""
        restarts, total = Restarts(), 0
        while restarts.count < self.options.server_restarts:
            if self.signals.stop.wait(restarts.pause_s(time.monotonic())):
                return Ended.CLEANLY
            restarts, total, began = restarts.another(time.monotonic()), total + 1, time.monotonic()
            _log.warning("starting tritonserver again (restart %d)", total)

            def serves(report: ReadyReport, began: float = began) -> None:
                names = ", ".join(name for name, *_ in report.models)
                _log.warning("%s: served again after %.1f s", names, time.monotonic() - began)

            try:
                selection = select_models(self.options.repository, self.options.models)
                plan = plan_start(self.options.repository, _names(selection))
                forget_changes(self.options.repository, _names(selection))
                ended = self.run(plan, selection, serves, total)
            except TidalError as error:
                _log.error("tritonserver did not come back: %s", error)
                ended = Ended.BY_ITSELF
            if ended is Ended.NOT_STARTED:
                return Ended.CLEANLY
            if ended is not Ended.BY_ITSELF:
                return ended
            if restarts.well(time.monotonic()):
                restarts = Restarts()
        return Ended.BY_ITSELF


def _names(selection: Selection) -> list[str]:
    return [entry.name for entry in selection.served]


def _start(
    server: ServerProcess, plan: StartPlan, selection: Selection, stop: threading.Event
) -> tuple[ServerState, ReadyReport] | None:
    if not server.wait_live(stop):
        return None
    failed = server.failed_models()
    if failed:
        server.end(_set_event())
        raise Internal("; ".join(f"model '{row.name}' does not load: {sentence(row.reason)}" for row in failed))
    launch = server.launch
    try:
        if not load_rest(server.control, launch.repository, plan, stop):
            return None
    except TidalError:
        server.end(_set_event())
        raise
    address = launch.endpoints.address
    state = ServerState(
        http=address(launch.endpoints.http),
        grpc=address(launch.endpoints.grpc),
        metrics=address(launch.endpoints.metrics),
        key=launch.key,
        pid=os.getpid(),
        pid_started=psutil.Process().create_time(),
        server_pid=server.pid,
        version=server.control.version(),
        repository=launch.repository,
        log=server.log,
    )
    return state, ReadyReport.of(state, launch, server.control, selection)


def _serve(
    server: ServerProcess,
    state: ServerState,
    report: ReadyReport,
    ready: Callable[[ReadyReport], None],
    signals: _Signals,
) -> Ended:
    path = write_state(state)
    try:
        ready(report)
        with _supervised(server, state, signals.stop):
            while not signals.stop.wait(0.2):
                if server.exit_status() is not None:
                    where = f"; its log: {server.log}" if server.log else ""
                    _log.error("tritonserver ended by itself (%s)%s", server.ending(), where)
                    return Ended.BY_ITSELF
        return _end(server, signals)
    finally:
        path.unlink(missing_ok=True)


def _end(server: ServerProcess, signals: _Signals) -> Ended:
    began = time.monotonic()
    if not server.end(signals.at_once):
        _log.error("tritonserver did not end within %.0f s and was killed", time.monotonic() - began)
        return Ended.CUT_SHORT
    if server.exit_status() != 0:
        # At its own exit timeout it ends with status 1 and leaves what is in flight unanswered.
        _log.error("tritonserver did not end cleanly (%s): requests may be unanswered", server.ending())
        return Ended.CUT_SHORT
    return Ended.CLEANLY


@contextmanager
def _supervised(server: ServerProcess, state: ServerState, stopping: threading.Event) -> Iterator[None]:
    """Restart models whose stubs die, until the block ends."""
    ended = threading.Event()

    def restarted(counts: dict[str, int]) -> None:
        if not ended.is_set():
            write_state(state.model_copy(update={"restarts": counts}))

    launch = server.launch
    supervisor = Supervisor(server.control, server.pid, launch.repository, python_backends(), restarted)
    thread = threading.Thread(target=supervisor.run, args=(ended,), name="supervisor", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        if not stopping.is_set():
            # The next server has the same addresses: nothing that was meant for this one may reach it. Calls to a
            # server that is gone end at once.
            thread.join()


@contextmanager
def _handled_signals() -> Iterator[_Signals]:
    signals = _Signals()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signals.receive) for number in numbers]
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        yield signals
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _log_file(http_port: int) -> Path:
    """`$XDG_STATE_HOME/tidal/<http port>.log`, kept after the end; beside the state where home is not writable."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tidal"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        folder = state_folder()
    in_use = {state.log for state in running_servers()}
    ended: list[tuple[float, Path]] = []
    for path in folder.glob("*.log"):
        with suppress(OSError):  # another server that starts removes old logs too
            if path not in in_use:
                ended.append((path.stat().st_mtime, path))
    for _, old in sorted(ended)[:-_KEPT_LOGS]:
        with suppress(OSError):
            old.unlink()
    return folder / f"{http_port}.log"


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event
