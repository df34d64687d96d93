"""The controller beside a server: looks every second, decides, and carries decisions out."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidal.arlo.scheduling import stages
from tidal.controller.claim import claim
from tidal.controller.decisions import Decision, ModelControl, Settings
from tidal.controller.following import ControlledServer
from tidal.controller.fronts import ServedFront, served_fronts
from tidal.controller.journal import Journal, by_length, shown
from tidal.controller.meters import Meters
from tidal.controller.series import Series, counts_of, increases, parse_series
from tidal.errors import NotFound, TidalError, Unsupported
from tidal.repository.allocation import read_allocation
from tidal.server.allocate import allocate, partitioned_model, wanted_now
from tidal.server.gauges import read_metrics

_LOOK_EVERY_S = 1.0
# A model whose change failed is left alone for so long.
_AFTER_FAILURE_S = 10.0


@dataclass(slots=True)
class _Controlled:
    """A model under control; `descriptor` is its claim, None in a dry run."""

    control: ModelControl
    descriptor: int | None
    not_before: float = 0.0
    decided: bool = False  # by the period, at least once


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look at the server showed; `at` is in seconds of the monotonic clock."""

    identity: tuple[int, int]
    at: float
    series: Series


class Controller:
    """Controls the partitioned models of one server.

    Args:
        find: gives the server; called at every look, raises Unavailable while it is away.
        settings: of every model.
        models: names; all partitioned models of the server where empty.
        journal: told everything.
        meters: the controller's own metrics.
        dry_run: decide and tell, but change nothing.
    """

    def __init__(
        self,
        find: Callable[[], ControlledServer],
        settings: Settings,
        models: Sequence[str],
        journal: Journal,
        meters: Meters,
        *,
        dry_run: bool = False,
    ) -> None:
        self._find = find
        self._settings = settings
        self._models = tuple(dict.fromkeys(models))
        self._journal = journal
        self._meters = meters
        self._dry_run = dry_run
        self._controlled: dict[str, _Controlled] = {}
        self._before: _Look | None = None
        self._server = ""  # its state that was told last
        self._troubles: dict[str, str] = {}  # by model, what was told last

    def run(self, stop: threading.Event, *, once: bool = False) -> None:
        """Control until `stop` is set, or until every model was decided about once.

        Raises:
            TidalError: a named model is not a partitioned one; or `once`, and the server is away or a change fails.
        """
        try:
            while not stop.is_set():
                self._look(stop, once)
                if once and self._controlled and all(each.decided for each in self._controlled.values()):
                    return
                stop.wait(_LOOK_EVERY_S)
        finally:
            for each in self._controlled.values():
                if each.descriptor is not None:
                    os.close(each.descriptor)
            self._controlled.clear()

    def _look(self, stop: threading.Event, once: bool) -> None:
        try:
            server = self._find()
            look = _Look(server.identity, time.monotonic(), parse_series(read_metrics(server.state.metrics)))
            if self._before is None:
                for name in self._models:
                    partitioned_model(server.state.repository, name)
            fronts = list(served_fronts(server, look.series, self._models))
        except (TidalError, OSError, ValueError) as error:  # a server that is just ending may answer anything
            if once or (self._before is None and isinstance(error, NotFound | Unsupported)):
                raise
            self._meters.server_up.set(0)
            self._server_is("away", f"waits: {error}")
            return
        self._meters.server_up.set(1)
        before, self._before = self._before, look
        if not fronts:
            lacking = f"the server at {server.state.http} serves no {' or '.join(self._models) or 'partitioned model'}"
            if once:
                raise NotFound(lacking)
            self._server_is("idle", f"waits: {lacking}")
            return
        self._server_is(f"connected {look.identity}", f"controls models of the server at {server.state.http}")
        # The counters of another server begin anew; how long ago cannot be told, so its first look is only a beginning.
        known = before if before is not None and before.identity == look.identity else look
        grown, seconds = increases(known.series, look.series), look.at - known.at
        for front in fronts:
            if stop.is_set():
                return
            try:
                self._control(front, grown, seconds, stop)
            except TidalError as error:
                if once:
                    raise
                if self._troubles.get(front.model) != str(error):
                    self._troubles[front.model] = str(error)
                    self._journal.tell("failed", f"left as it is for now: {error}", front.model)

    def _server_is(self, state: str, sentence: str) -> None:
        """Tell a change of the server's state, once."""
        if state != self._server:
            self._server = state
            self._journal.tell(state.partition(" ")[0], sentence)

    def _control(self, front: ServedFront, grown: Series, seconds: float, stop: threading.Event) -> None:
        live, now = front.live, time.monotonic()
        wanted = wanted_now(live.repository, live.model)
        present = tuple(wanted[length] for length in front.profile.lengths)
        controlled = self._take(front, present, now)
        control = controlled.control
        if seconds:
            lengths, slo_s = front.profile.lengths, front.profile.slo_s
            control.observe(counts_of(grown, front.model, front.versions, lengths, slo_s, seconds))
        if now < controlled.not_before:
            return
        try:
            self._complete(front, wanted)
            decision = control.decide(now, present)
            if decision is None:
                return
            controlled.decided |= decision.action in ("keep", "allocate")
            self._journal.decided(front.model, front.profile, decision, self._dry_run)
            self._meters.decided(front.model, front.profile, decision)
            if decision.after != decision.before and not self._dry_run:
                self._carry_out(front, decision, stop)
                control.changed(time.monotonic())
            self._troubles.pop(front.model, None)
        except TidalError:
            controlled.not_before = time.monotonic() + _AFTER_FAILURE_S
            raise

    def _take(self, front: ServedFront, present: tuple[int, ...], now: float) -> _Controlled:
        """The model under control; anew when other runtimes or another SLO have been published."""
        known = self._controlled.get(front.model)
        if known is not None and known.control.profile == front.profile:
            return known
        descriptor = known.descriptor if known is not None else None
        if known is None and not self._dry_run:
            descriptor = claim(front.live.repository / front.model)
        control = ModelControl(front.profile, self._settings, present, now)
        known = self._controlled[front.model] = _Controlled(control, descriptor)
        self._meters.in_force(front.model, front.profile, present)
        return known

    def _complete(self, front: ServedFront, wanted: dict[int, int]) -> None:
        """Finish a change that was cut short, by whoever began it."""
        allocation = read_allocation(front.live.repository / front.model)
        if allocation is None or allocation.loaded is None or self._dry_run:
            return
        allocate(front.live, wanted, lambda line: self._journal.tell("step", line, front.model))
        self._journal.tell("completed", f"completed a change that was cut short: {shown(wanted)}", front.model)

    def _carry_out(self, front: ServedFront, decision: Decision, stop: threading.Event) -> None:
        began = time.monotonic()
        counts = decision.before
        try:
            for stage in stages(decision.before, decision.after):
                if stop.is_set():
                    self._journal.tell("stopped", f"stops at {shown(by_length(front.profile, counts))}", front.model)
                    return
                allocate(
                    front.live,
                    by_length(front.profile, stage),
                    lambda line: self._journal.tell("step", line, front.model),
                )
                more = sum(max(0, b - a) for a, b in zip(counts, stage, strict=True))
                fewer = sum(max(0, a - b) for a, b in zip(counts, stage, strict=True))
                self._meters.replacements.labels(front.model).inc(max(more, fewer))
                self._meters.in_force(front.model, front.profile, stage)
                counts = stage
        except TidalError as error:
            self._meters.failed.labels(front.model).inc()
            raise type(error)(f"{decision.action} was not completed: {error}") from None
        seconds = time.monotonic() - began
        self._meters.change.labels(front.model).observe(seconds)
        if decision.action == "allocate" and decision.mean_best_s is not None:
            self._meters.predicted.labels(front.model).set(decision.mean_best_s)
        self._journal.tell(
            "changed",
            f"uses {shown(by_length(front.profile, counts))} after {seconds:.1f} s",
            front.model,
            seconds=round(seconds, 3),
        )
