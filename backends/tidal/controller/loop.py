"""The controller's loop: reads the server's metrics every second, decides, and applies decisions."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidal.arlo.scheduling import stages
from tidal.controller.decisions import AllocationDecision, ControllerSettings, ModelController
from tidal.controller.devices import HostDevices
from tidal.controller.event_log import EventLog, by_length
from tidal.controller.fronts import ServedFront, served_fronts
from tidal.controller.lock import lock_model
from tidal.controller.metrics import ControllerMetrics
from tidal.controller.series import Series, counts_of, increases, parse_series
from tidal.controller.server_finder import ControlledServer
from tidal.errors import NotFound, TidalError, Unsupported
from tidal.repository.allocation import read_allocation
from tidal.server.allocate import allocate, format_counts, partitioned_model, wanted_now
from tidal.server.gauges import read_metrics

_POLL_INTERVAL_S = 1.0
# Pause before the next decision about a model whose change failed.
_PAUSE_AFTER_FAILURE_S = 10.0


@dataclass(slots=True)
class _ControlledModel:
    """A controlled model.

    Attributes:
        control: Decides for it.
        descriptor: Holds its lock; None in a dry run.
        first: Number of its instances when control began.
        assumed: Its instances and those that it would have after added and released ones, in a dry run; else None.
        not_before: Time of the next decision after a failed change.
        decided: Whether a period has ended with a decision.
    """

    control: ModelController
    descriptor: int | None
    first: int
    assumed: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    not_before: float = 0.0
    decided: bool = False


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """One reading of the server's metrics; `at` is its `time.monotonic()` in seconds."""

    identity: tuple[int, int]
    at: float
    series: Series


class Controller:
    """Controls the partitioned models of one server.

    Args:
        find: Returns the server; called before every reading, raises Unavailable while the server is down.
        settings: Settings that apply to every model.
        models: Names of the models; empty: all partitioned models of the server.
        events: Log that every event is written to.
        metrics: The controller's own metrics.
        dry_run: Whether to log decisions without applying them.
    """

    def __init__(
        self,
        find: Callable[[], ControlledServer],
        settings: ControllerSettings,
        models: Sequence[str],
        events: EventLog,
        metrics: ControllerMetrics,
        *,
        dry_run: bool = False,
    ) -> None:
        self._find = find
        self._settings = settings
        self._models = tuple(dict.fromkeys(models))
        self._events = events
        self._metrics = metrics
        self._dry_run = dry_run
        self._controlled: dict[str, _ControlledModel] = {}
        self._devices: tuple[tuple[int, int], HostDevices] | None = None  # of the server with this identity
        self._before: _Snapshot | None = None
        self._server = ""  # state that was logged last
        self._reported_errors: dict[str, str] = {}  # by model, the error that was logged last

    def run(self, stop: threading.Event, *, once: bool = False) -> None:
        """Control the models until `stop` is set.

        Args:
            stop: Event that ends the loop.
            once: Whether to return as soon as there was one decision for every model.

        Raises:
            TidalError: A named model is not partitioned; with `once`: the server is down or a change failed.
        """
        try:
            while not stop.is_set():
                self._poll(stop, once)
                if once and self._controlled and all(each.decided for each in self._controlled.values()):
                    return
                stop.wait(_POLL_INTERVAL_S)
        finally:
            for each in self._controlled.values():
                if each.descriptor is not None:
                    os.close(each.descriptor)
            self._controlled.clear()

    def _poll(self, stop: threading.Event, once: bool) -> None:
        try:
            server = self._find()
            snapshot = _Snapshot(server.identity, time.monotonic(), parse_series(read_metrics(server.state.metrics)))
            if self._before is None:
                for name in self._models:
                    partitioned_model(server.state.repository, name)
            fronts = list(served_fronts(server, snapshot.series, self._models))
            all_fronts = list(served_fronts(server, snapshot.series, ())) if self._models else fronts
            if self._devices is None or self._devices[0] != server.identity:
                self._devices = server.identity, HostDevices.of_process(server.state.server_pid)
        except (TidalError, OSError, ValueError) as error:  # a server that is shutting down may answer anything
            if once or (self._before is None and isinstance(error, NotFound | Unsupported)):
                raise
            self._metrics.server_up.set(0)
            self._report_server("away", f"waiting: {error}")
            return
        self._metrics.server_up.set(1)
        before, self._before = self._before, snapshot
        if not fronts:
            missing = ", ".join(self._models) or "any partitioned model"
            lacking = f"the server at {server.state.http} does not serve {missing}"
            if once:
                raise NotFound(lacking)
            self._report_server("idle", f"waiting: {lacking}")
            return
        self._report_server(
            f"connected {snapshot.identity}", f"controlling models of the server at {server.state.http}"
        )
        # A restarted server counts from 0 since an unknown time, so its first reading is only a reference.
        known = before if before is not None and before.identity == snapshot.identity else snapshot
        increase, seconds = increases(known.series, snapshot.series), snapshot.at - known.at
        held = {front.model: self._held(front) for front in all_fronts}
        for front in fronts:
            if stop.is_set():
                return
            others = [(other, held[other.model]) for other in all_fronts if other.model != front.model]
            devices = self._devices[1].instances(front, others)
            try:
                held[front.model] = self._control(front, devices, increase, seconds, stop)
            except TidalError as error:
                if once:
                    raise
                if self._reported_errors.get(front.model) != str(error):
                    self._reported_errors[front.model] = str(error)
                    self._events.record("failed", f"unchanged for now: {error}", front.model)

    def _report_server(self, state: str, sentence: str) -> None:
        """Log a change of the server's state, once."""
        if state != self._server:
            self._server = state
            self._events.record(state.partition(" ")[0], sentence)

    def _held(self, front: ServedFront) -> int:
        """Return the number of instances that a model is to have; 0 if its files are not valid."""
        try:
            return sum(self._present(front, wanted_now(front.live.repository, front.live.model)))
        except TidalError:
            return 0

    def _present(self, front: ServedFront, wanted: dict[int, int]) -> tuple[int, ...]:
        """Return the instances by runtime that a model is to have, in a dry run those that it would have."""
        present = tuple(wanted[length] for length in front.profile.lengths)
        known = self._controlled.get(front.model)
        if known is not None and known.assumed is not None and known.assumed[0] == present:
            return known.assumed[1]
        return present

    def _control(
        self, front: ServedFront, devices: int | None, increase: Series, seconds: float, stop: threading.Event
    ) -> int:
        """Decide about a model and carry it out; return the number of instances that it has then.

        Args:
            front: The model.
            devices: Number of instances that the devices can hold; None: unknown, so it keeps the initial number.
            increase: Increase of each series since the last reading.
            seconds: Time since then, in seconds.
            stop: Event that ends the loop.
        """
        live, now = front.live, time.monotonic()
        wanted = wanted_now(live.repository, live.model)
        present = self._present(front, wanted)
        controlled = self._model_under_control(front, present, devices, now)
        control = controlled.control
        if seconds:
            lengths, slo_s = front.profile.lengths, front.profile.slo_s
            control.observe(counts_of(increase, front.model, front.versions, lengths, slo_s, seconds))
        if now < controlled.not_before:
            return sum(present)
        try:
            self._resume_change(front, wanted)
            decision = control.decide(now, present, controlled.first if devices is None else devices)
            if decision is None:
                return sum(present)
            controlled.decided |= decision.action in ("keep", "allocate")
            self._events.decided(front.model, front.profile, decision, self._dry_run)
            self._metrics.decided(front.model, front.profile, decision)
            if decision.after != decision.before and not self._dry_run:
                self._apply(front, decision, stop)
                control.changed(time.monotonic())
            elif decision.action in ("add", "release"):  # otherwise the same decision follows every second
                controlled.assumed = tuple(wanted[length] for length in front.profile.lengths), decision.after
            self._reported_errors.pop(front.model, None)
            return sum(decision.after)
        except TidalError:
            controlled.not_before = time.monotonic() + _PAUSE_AFTER_FAILURE_S
            raise

    def _model_under_control(
        self, front: ServedFront, present: tuple[int, ...], devices: int | None, now: float
    ) -> _ControlledModel:
        """Return the controlled model; control restarts after a publish with other runtimes or another SLO."""
        known = self._controlled.get(front.model)
        if known is not None and known.control.profile == front.profile:
            return known
        descriptor = known.descriptor if known is not None else None
        if known is None and not self._dry_run:
            descriptor = lock_model(front.live.repository / front.model)
        first = sum(present)
        control = ModelController(front.profile, self._settings, first if devices is None else devices, now)
        known = self._controlled[front.model] = _ControlledModel(control, descriptor, first)
        self._metrics.set_instances(front.model, front.profile, present)
        return known

    def _resume_change(self, front: ServedFront, wanted: dict[int, int]) -> None:
        """Finish a change that was interrupted, whoever began it."""
        allocation = read_allocation(front.live.repository / front.model)
        if allocation is None or allocation.loaded is None or self._dry_run:
            return
        allocate(front.live, wanted, lambda line: self._events.record("step", line, front.model))
        self._events.record("completed", f"completed an interrupted change: {format_counts(wanted)}", front.model)

    def _apply(self, front: ServedFront, decision: AllocationDecision, stop: threading.Event) -> None:
        began = time.monotonic()
        counts = decision.before
        try:
            for (stage,) in stages([decision.before], [decision.after]):
                if stop.is_set():
                    self._events.record(
                        "stopped", f"stopped at {format_counts(by_length(front.profile, counts))}", front.model
                    )
                    return
                allocate(
                    front.live,
                    by_length(front.profile, stage),
                    lambda line: self._events.record("step", line, front.model),
                )
                more = sum(max(0, b - a) for a, b in zip(counts, stage, strict=True))
                fewer = sum(max(0, a - b) for a, b in zip(counts, stage, strict=True))
                self._metrics.replacements.labels(front.model).inc(max(more, fewer))
                self._metrics.set_instances(front.model, front.profile, stage)
                counts = stage
        except TidalError as error:
            self._metrics.failed.labels(front.model).inc()
            raise type(error)(f"{decision.action} was not completed: {error}") from None
        seconds = time.monotonic() - began
        self._metrics.change.labels(front.model).observe(seconds)
        if decision.action == "allocate" and decision.mean_best_s is not None:
            self._metrics.predicted.labels(front.model).set(decision.mean_best_s)
        self._events.record(
            "changed",
            f"now at {format_counts(by_length(front.profile, counts))} after {seconds:.1f} s",
            front.model,
            seconds=round(seconds, 3),
        )
