"""What to do about a model's instances, from what was observed of it. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tidal.arlo.scheduling import (
    LEAST_GAIN,
    AllocationProblem,
    Autoscaler,
    InstanceLoad,
    RuntimeProfile,
    Scaling,
    demand_by_runtime,
    least_busy,
    reallocate,
)
from tidal.controller.counts import Counts
from tidal.errors import InvalidArgument

Action = Literal["keep", "allocate", "add", "release"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is controlled.

    Args:
        period_s: seconds that are observed before each allocation.
        least_gain: share of the predicted mean latency that a change of the allocation has to save.
        fewest: instances never to go below; None for as many as there are at first, or `most` if that is less.
        most: instances never to go above; None for as many as there are at first, or `fewest` if that is more.

    Raises:
        InvalidArgument: a value is out of range; names the option.
    """

    period_s: float = 120.0
    least_gain: float = LEAST_GAIN
    fewest: int | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.period_s <= 86_400:
            raise InvalidArgument(f"--period must lie between 1 and 86,400 seconds, got {self.period_s:g}")
        if not 0 <= self.least_gain < 1:
            raise InvalidArgument(f"--least-gain must be a share from 0 to less than 1, got {self.least_gain:g}")
        for name, value in (("fewest", self.fewest), ("most", self.most)):
            if value is not None and value < 1:
                raise InvalidArgument(f"--{name} must be at least 1 instance, got {value}")
        if self.fewest is not None and self.most is not None and self.fewest > self.most:
            raise InvalidArgument(f"--fewest {self.fewest} is more than --most {self.most}")


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """What is known of a model beforehand: its runtimes' `max_length` in tokens, ascending, the seconds that a query
    padded to each of them takes, and its SLO in seconds."""

    lengths: tuple[int, ...]
    latencies_s: tuple[float, ...]
    slo_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done, and why.

    Attributes:
        action: "keep", "allocate" (Eqs. 1 to 7), "add" or "release" (resource scaling).
        reason: the rule that decided, as a part of a sentence.
        before: instances by runtime.
        after: instances by runtime to come.
        observed: what it rests on.
        demand: queries in one SLO period by runtime (Q_i); empty where none were observed or none were asked for.
        mean_before_s: predicted mean latency of `before`, seconds; None where nothing was predicted.
        mean_best_s: predicted mean latency of the best allocation of as many instances.
        shortfall: one sentence on the instances that are lacking for the SLO.
        gpus_short: how many these are.
    """

    action: Action
    reason: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    observed: Counts
    demand: tuple[float, ...] = ()
    mean_before_s: float | None = None
    mean_best_s: float | None = None
    shortfall: str | None = None
    gpus_short: int = 0


class ModelControl:
    """Decides for one model. It is told what happened since it was last told, and then asked.

    Args:
        profile: of the model.
        settings: how it is controlled.
        present: instances by runtime when control begins.
        now: seconds on the caller's clock.
    """

    def __init__(self, profile: ModelProfile, settings: Settings, present: Sequence[int], now: float) -> None:
        self.profile = profile
        self._settings = settings
        self._runtimes = tuple(
            RuntimeProfile.from_service(latency, profile.slo_s, settings.period_s) for latency in profile.latencies_s
        )
        first = sum(present)
        self._fewest = min(first, settings.most or first) if settings.fewest is None else settings.fewest
        self._most = max(first, self._fewest) if settings.most is None else settings.most
        self._seen = self._earlier = Counts.none(len(profile.lengths))
        self._scaler = self._new_scaler(now)

    def observe(self, counts: Counts) -> None:
        """What happened since the last call."""
        self._seen += counts
        if self._scaler is not None:
            self._scaler.observe(counts.requests, counts.slow, counts.critical)

    def decide(self, now: float, present: Sequence[int]) -> Decision | None:
        """What to do now with these instances by runtime; None between two decisions. Call it about every second."""
        before, instances = tuple(present), sum(present)
        if instances < self._fewest:
            return self._add(before, f"{instances} instances are fewer than the {self._fewest} that are to be there")
        if instances > self._most:
            return self._release(before, f"{instances} instances are more than the {self._most} that may be there")
        wanted = self._scaler.decide(now, instances) if self._scaler is not None else None
        if wanted is Scaling.ADD:
            return self._add(before, "the 98th percentile of the latency has reached 95 % of the SLO")
        if wanted is Scaling.RELEASE:
            released = self._release(
                before, "the 98th percentile of the latency has stayed below 50 % of the SLO for 60 s"
            )
            if released is not None:
                return released
        # Seconds in which the server was seen: one that was away for a while is not judged by the little before that.
        if self._seen.seconds < self._settings.period_s:
            return None
        seen, self._seen = self._seen, Counts.none(len(before))
        self._earlier = seen
        return self._allocate(before, seen)

    def changed(self, now: float) -> None:
        """The instances have just changed: latencies until now say nothing of how many there should be."""
        self._scaler = self._new_scaler(now)

    def _new_scaler(self, now: float) -> Autoscaler | None:
        if self._fewest == self._most:
            return None
        return Autoscaler(self.profile.slo_s, fewest=self._fewest, most=self._most, now=now)

    def _allocate(self, before: tuple[int, ...], seen: Counts) -> Decision:
        if not any(seen.queries):
            return Decision("keep", "no queries were observed", before, before, seen)
        lengths, slo_s = self.profile.lengths, self.profile.slo_s
        histogram = dict(zip(lengths, seen.queries, strict=True))
        demand = demand_by_runtime(histogram, lengths, observed_s=seen.seconds, slo_s=slo_s)
        found = reallocate(AllocationProblem(sum(before), self._runtimes, demand), before, self._settings.least_gain)
        if found is None:  # less than the solver counts
            return Decision("keep", "hardly any queries were observed", before, before, seen, demand)
        if found.after != before:
            reason = f"the best allocation is predicted to be {100 * found.gain:.0f} % faster"
        elif found.solution.instances == before:
            reason = "it is the best allocation"
        else:
            best = " ".join(f"{n}={count}" for n, count in zip(lengths, found.solution.instances, strict=True))
            gain, least = 100 * found.gain, 100 * self._settings.least_gain
            reason = f"{best} is predicted to be {gain:.1f} % faster, less than the least gain of {least:g} %"
        return Decision(
            "keep" if found.after == before else "allocate",
            reason,
            before,
            found.after,
            seen,
            demand,
            found.mean_before_s,
            found.mean_best_s,
            found.solution.shortfall,
            found.solution.gpus_short,
        )

    def _add(self, before: tuple[int, ...], reason: str) -> Decision:
        return Decision("add", reason, before, (*before[:-1], before[-1] + 1), self._seen)

    def _release(self, before: tuple[int, ...], reason: str) -> Decision | None:
        """None where only the last instance of the longest runtime is left."""
        runtimes = [runtime for runtime, count in enumerate(before) for _ in range(count)]
        # Of the period before too: this one may have just begun.
        busy_s = (self._earlier + self._seen).busy_s
        busy = [seconds / max(count, 1) for seconds, count in zip(busy_s, before, strict=True)]
        loads = [InstanceLoad(lane, runtime, busy[runtime]) for lane, runtime in enumerate(runtimes)]
        leaving = least_busy(loads, len(before) - 1)
        if leaving is None:
            return None
        after = tuple(count - (runtime == leaving.runtime) for runtime, count in enumerate(before))
        return Decision("release", reason, before, after, self._seen)
