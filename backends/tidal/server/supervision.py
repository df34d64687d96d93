"""Restarting models whose Python stub crashed.

Triton neither restarts a dead stub nor reports it: the model stays READY, and its requests fail or hang. `decide` makes
every decision, as a pure function of what was observed; `Supervisor` observes and executes.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tidal.catalog.graph import ModelGraph
from tidal.errors import TidalError
from tidal.server.active_config import restart_model
from tidal.server.backoff import Restarts
from tidal.server.control import ServerControl
from tidal.server.reasons import sentence
from tidal.server.stubs import Stub, live_stubs, wanted_instances

POLL_S = 0.4
# Time for a stub from before a restart to answer the requests it accepted: over twice the default `answer_timeout_s`.
_LEAVES_WITHIN_S = 60.0

_log = logging.getLogger("tidal.supervision")


@dataclass(frozen=True, slots=True)
class StubObservation:
    """What one poll of the server showed.

    Attributes:
        wanted: Instances that the active config specifies, by model and version that serve.
        loading: Models that are being loaded.
        failed: Models that do not serve because a load failed, not because they were unloaded.
        stubs: Live stub processes.
    """

    wanted: Mapping[tuple[str, int], int]
    loading: frozenset[str]
    failed: frozenset[str]
    stubs: frozenset[Stub]


@dataclass(frozen=True, slots=True)
class SupervisionState:
    """What `decide` keeps from one poll to the next.

    Attributes:
        short: Models that lacked a stub at the last poll.
        restarts: Restarts in a row by model.
        retired: Stubs from before a model's last restart, which no longer serve and may take a while to end: time of
            the restart in seconds, by process id.
        overdue: Retired stubs to kill now: their time is over, and their successors serve.
        waiting: Models that lacked a stub at two polls in a row and wait for their next restart.
    """

    short: frozenset[str] = frozenset()
    restarts: Mapping[str, Restarts] = field(default_factory=dict)
    retired: Mapping[int, float] = field(default_factory=dict)
    overdue: tuple[int, ...] = ()
    waiting: frozenset[str] = frozenset()


def decide(memory: SupervisionState, seen: StubObservation, now_s: float) -> tuple[list[str], SupervisionState]:
    """Decide which models to restart now.

    A model lacks a stub when it serves with fewer live stubs than its config specifies, at two polls in a row and
    without a load in progress. A reload or a change of its instance count never has fewer: new stubs start before the
    config counts them, and old ones end after it no longer does. A model that was restarted here and failed to load is
    loaded again; one that was unloaded by others is left alone.

    Stubs from before a restart answer the requests that they accepted and end. Triton never ends them where a request
    of another model was in flight in the crashed stub: they would occupy a core and memory that their successors need.

    Args:
        memory: State from the last call; `SupervisionState()` at first.
        seen: This poll.
        now_s: Monotonic time in seconds.

    Returns:
        Models to restart, and the state for the next call.
    """
    busy = seen.loading | {stub.model for stub in seen.stubs if stub.completes_config}
    serving: dict[tuple[str, int], int] = {}
    for stub in seen.stubs:
        if stub.pid not in memory.retired and not stub.completes_config:
            serving[stub.model, stub.version] = serving.get((stub.model, stub.version), 0) + 1
    lacking = {key[0] for key, wanted in seen.wanted.items() if serving.get(key, 0) < wanted}
    short = frozenset(lacking - busy)
    restarts = {
        model: past for model, past in memory.restarts.items() if not past.stable(now_s) or model in seen.failed
    }
    due = []
    for model in sorted((short & memory.short) | (seen.failed & restarts.keys()) - busy):
        past = restarts.get(model, Restarts())
        if past.pause_s(now_s) <= 0:
            due.append(model)
            restarts[model] = past.restarted(now_s)
    retired = {
        stub.pid: memory.retired.get(stub.pid, now_s)
        for stub in seen.stubs
        if stub.model in due or stub.pid in memory.retired
    }
    well = {key[0] for key in seen.wanted} - lacking - busy
    overdue = tuple(
        stub.pid
        for stub in seen.stubs
        if stub.model in well and now_s - retired.get(stub.pid, now_s) >= _LEAVES_WITHIN_S
    )
    waiting = (short & memory.short) - set(due)
    return due, SupervisionState(short - set(due), restarts, retired, overdue, waiting)


@dataclass(frozen=True, slots=True)
class FailingModels:
    """Models whose Python process ended.

    Attributes:
        interrupted: Models that are being restarted or wait for it, each with the reason.
        unrecovered: Models that did not load again, each with the reason.
    """

    interrupted: Mapping[str, str]
    unrecovered: Mapping[str, str]


class Supervisor:
    """Polls a server every `POLL_S` seconds and restarts the models that `decide` names."""

    def __init__(
        self,
        control: ServerControl,
        server_pid: int,
        repository: Path,
        python_backends: frozenset[str],
        counts: dict[str, int],
        restarted: Callable[[], None],
    ) -> None:
        """Create a supervisor; `run` starts it.

        Args:
            control: Admin API of the server.
            server_pid: Process id of the server.
            repository: Folder of its model repository.
            python_backends: Names of the backends whose instances are stubs.
            counts: Number of restarts by model, which each restart increments.
            restarted: Called after each restart.
        """
        self._counts = counts
        self._control = control
        self._server_pid = server_pid
        self._repository = repository
        self._python_backends = python_backends
        self._restarted = restarted
        self._memory = SupervisionState()
        self._lock = threading.Lock()
        self._restarting: set[str] = set()
        self._unrecovered: dict[str, str] = {}
        self._threads: list[threading.Thread] = []
        self._stable_stubs: frozenset[Stub] | None = None

    def failing_models(self) -> FailingModels:
        """Models that do not answer because a Python process of theirs ended. Any thread may call it."""
        lost = dict.fromkeys(
            self._memory.waiting, "one of its Python processes ended; restarting the model after a pause"
        )
        for model in tuple(self._restarting):
            count = self._counts.get(model, 0)
            lost[model] = f"one of its Python processes ended; restarting the model (restart {count})"
        return FailingModels(lost, dict(self._unrecovered))

    def run(self, stop: threading.Event) -> None:
        """Supervise until `stop` is set; restarts in progress have ended when this returns."""
        while not stop.wait(POLL_S):
            try:
                self.step(stop)
            except TidalError as error:
                if not stop.is_set():
                    _log.warning("the supervisor cannot reach the server: %s", error)
            except Exception:
                _log.exception("supervision failed; trying again")
        for thread in self._threads:
            thread.join()

    def step(self, stop: threading.Event) -> None:
        """Poll once. Requests go to the server only while something changes; listing the processes is cheap.

        Args:
            stop: Once it is set, a restart in progress no longer reports its failure: the server is ending.
        """
        stubs = live_stubs(self._server_pid)
        if stubs == self._stable_stubs:
            return
        seen = self._observe(stubs)
        due, self._memory = decide(self._memory, seen, time.monotonic())
        for pid in self._memory.overdue:
            _log.warning("a Python stub from before a restart does not end: killing it (process %d)", pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for model in due:
            # One thread per model: a load of minutes must not delay the restart of another model.
            self._restarting.add(model)
            thread = threading.Thread(target=self._restart, args=(model, stop), name=f"restart-{model}", daemon=True)
            thread.start()
            self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        changing = due or self._memory.short or seen.loading or seen.failed or self._memory.retired
        self._stable_stubs = None if changing else stubs

    def _observe(self, stubs: frozenset[Stub]) -> StubObservation:
        index = self._control.index()
        ready = [row for row in index if row.state == "READY"]
        wanted, loading = {}, {row.name for row in index if row.state == "LOADING"} | self._restarting
        for row in ready:
            try:
                config = self._control.config(row.name, row.version)
            except TidalError:  # it was unloaded between the two calls
                loading.add(row.name)
                continue
            if config.get("backend") in self._python_backends:
                wanted[row.name, row.version] = wanted_instances(config)
        names = {row.name for row in ready}
        for model in names & self._unrecovered.keys():  # it was loaded by others
            self._unrecovered.pop(model, None)
        failed = {r.name for r in index if r.state == "UNAVAILABLE" and r.reason != "unloaded" and r.name not in names}
        return StubObservation(wanted, frozenset(loading), frozenset(failed), stubs)

    def _restart(self, model: str, stop: threading.Event) -> None:
        with self._lock:
            count = self._counts[model] = self._counts.get(model, 0) + 1
        _log.warning("model '%s' lost a Python stub: restarting it (restart %d)", model, count)
        began = time.monotonic()
        try:
            restart_model(self._control, ModelGraph.read(self._repository), model)
        except TidalError as error:
            why = sentence(str(error))
            self._unrecovered[model] = f"one of its Python processes ended, and it does not load again: {why}"
            if not stop.is_set():
                _log.error("model '%s' does not load again; the next restart follows: %s", model, why)
        else:
            self._unrecovered.pop(model, None)
            _log.warning("model '%s' serves again after %.1f s", model, time.monotonic() - began)
        finally:
            self._restarting.discard(model)
        with self._lock:
            self._restarted()
