"""Restarting models whose Python stub died.

Triton neither restarts a dead stub nor reports it: the model stays READY, and its requests fail or hang. `decide` is
the whole judgement, a pure function of what is observed; `Supervisor` observes and carries out.
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
# What a stub from before a restart gets to answer what it has taken: twice the default `answer_timeout_s` and more.
_LEAVES_WITHIN_S = 60.0

_log = logging.getLogger("tidal.supervision")


@dataclass(frozen=True, slots=True)
class StubObservation:
    """What one look at the server showed."""

    wanted: Mapping[tuple[str, int], int]  # model and version that serve -> instances that its config asks for
    loading: frozenset[str]  # models that somebody is loading
    failed: frozenset[str]  # models not served because a load failed, not because somebody unloaded them
    stubs: frozenset[Stub]


@dataclass(frozen=True, slots=True)
class SupervisionState:
    """What the judgement remembers from one look to the next."""

    short: frozenset[str] = frozenset()  # models that lacked a stub at the last look
    restarts: Mapping[str, Restarts] = field(default_factory=dict)
    # Stubs from before a model's last restart, which may take a while to leave and do not serve, and since when.
    retired: Mapping[int, float] = field(default_factory=dict)
    # Of those the ones to end now: they have had their time, and their successors serve.
    overdue: tuple[int, ...] = ()
    # Models that lacked a stub at two looks in a row and wait for their next restart.
    waiting: frozenset[str] = frozenset()


def decide(memory: SupervisionState, seen: StubObservation, now_s: float) -> tuple[list[str], SupervisionState]:
    """Which models to restart now.

    A model lacks a stub when it serves with fewer live stubs than its config asks for, at two looks in a row and with
    no load under way. While it reloads or changes its instance count it has never fewer: new stubs start before
    the config counts them, old ones leave after it stopped. A model that was restarted here and failed to load is
    tried again; one that somebody else unloaded is left alone.

    Stubs from before a restart answer what they have taken and leave. Triton never ends them where a request of
    another model was in flight in the stub that died: they would keep core and memory from their successors.

    Args:
        memory: from the last call; `SupervisionState()` at first.
        seen: this look.
        now_s: monotonic time in seconds.

    Returns:
        Models to restart, and the memory for the next call.
    """
    busy = seen.loading | {stub.model for stub in seen.stubs if stub.completes_config}
    serving: dict[tuple[str, int], int] = {}
    for stub in seen.stubs:
        if stub.pid not in memory.retired and not stub.completes_config:
            serving[stub.model, stub.version] = serving.get((stub.model, stub.version), 0) + 1
    lacking = {key[0] for key, wanted in seen.wanted.items() if serving.get(key, 0) < wanted}
    short = frozenset(lacking - busy)
    restarts = {model: past for model, past in memory.restarts.items() if not past.well(now_s) or model in seen.failed}
    due = []
    for model in sorted((short & memory.short) | (seen.failed & restarts.keys()) - busy):
        past = restarts.get(model, Restarts())
        if past.pause_s(now_s) <= 0:
            due.append(model)
            restarts[model] = past.another(now_s)
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
    """Models whose Python process ended, with what is done about it: those that are being restarted or wait for it, and
    those that did not load again."""

    interrupted: Mapping[str, str]
    unrecovered: Mapping[str, str]


class Supervisor:
    """Looks at a server every `POLL_S` seconds and restarts what `decide` says."""

    def __init__(
        self,
        control: ServerControl,
        server_pid: int,
        repository: Path,
        python_backends: frozenset[str],
        counts: dict[str, int],
        restarted: Callable[[], None],
    ) -> None:
        """Watch a server.

        Args:
            control: its admin side.
            server_pid: its process.
            repository: where its models are.
            python_backends: names of the backends whose instances are stubs.
            counts: restarts by model, which each one adds to.
            restarted: called after each one.
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
        """Models that do not answer because a Python process of theirs ended; from any thread."""
        lost = dict.fromkeys(self._memory.waiting, "a Python process of it ended; restarting the model after a pause")
        for model in tuple(self._restarting):
            count = self._counts.get(model, 0)
            lost[model] = f"a Python process of it ended; restarting the model (restart {count})"
        return FailingModels(lost, dict(self._unrecovered))

    def run(self, stop: threading.Event) -> None:
        """Watch until `stop` is set; restarts under way have ended when this returns."""
        while not stop.wait(POLL_S):
            try:
                self.step(stop)
            except TidalError as error:
                if not stop.is_set():
                    _log.warning("supervision could not look at the server: %s", error)
            except Exception:
                _log.exception("supervision failed and goes on")
        for thread in self._threads:
            thread.join()

    def step(self, stop: threading.Event) -> None:
        """Look once. The server is asked only while something moves; a look at the processes is cheap.

        Once `stop` is set, a restart under way no longer reports its failure: the server is ending.
        """
        stubs = live_stubs(self._server_pid)
        if stubs == self._stable_stubs:
            return
        seen = self._observe(stubs)
        due, self._memory = decide(self._memory, seen, time.monotonic())
        for pid in self._memory.overdue:
            _log.warning("a Python stub from before a restart does not leave: ending it (process %d)", pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for model in due:
            # A thread each: a model that takes minutes to load must not keep another from coming back.
            self._restarting.add(model)
            thread = threading.Thread(target=self._restart, args=(model, stop), name=f"restart-{model}", daemon=True)
            thread.start()
            self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        moving = due or self._memory.short or seen.loading or seen.failed or self._memory.retired
        self._stable_stubs = None if moving else stubs

    def _observe(self, stubs: frozenset[Stub]) -> StubObservation:
        index = self._control.index()
        ready = [row for row in index if row.state == "READY"]
        wanted, loading = {}, {row.name for row in index if row.state == "LOADING"} | self._restarting
        for row in ready:
            try:
                config = self._control.config(row.name, row.version)
            except TidalError:  # it left between the two calls
                loading.add(row.name)
                continue
            if config.get("backend") in self._python_backends:
                wanted[row.name, row.version] = wanted_instances(config)
        names = {row.name for row in ready}
        for model in names & self._unrecovered.keys():  # somebody else has loaded it
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
            self._unrecovered[model] = f"a Python process of it ended and it does not load again: {why}"
            if not stop.is_set():
                _log.error("model '%s' did not come back, trying again later: %s", model, why)
        else:
            self._unrecovered.pop(model, None)
            _log.warning("model '%s' serves again after %.1f s", model, time.monotonic() - began)
        finally:
            self._restarting.discard(model)
        with self._lock:
            self._restarted()
