"""Decisions about a model's instances, from its observed traffic. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tidal.arlo.scheduling import (
    MIN_GAIN,
    AllocationProblem,
    Autoscaler,
    InstanceLoad,
    RuntimeProfile,
    Scaling,
    demand_by_runtime,
    least_busy,
    place,
    reallocate,
)
from tidal.controller.counts import ModelCounts
from tidal.errors import InvalidArgument

Action = Literal["keep", "allocate", "add", "release"]


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of the controller, the same for all models.

    Args:
        period_s: Observation time before each reallocation, in seconds.
        min_gain: Share of the predicted mean latency that a reallocation must save, from 0 to less than 1.
        min_instances: Minimum number of instances; None: as many as the devices hold, or `max_instances` if that is
            lower.
        max_instances: Maximum number of instances; None: as many as the devices hold, or `min_instances` if that is
            higher.

    Raises:
        InvalidArgument: A value is out of range; the message names the option.
    """

    period_s: float = 120.0
    min_gain: float = MIN_GAIN
    min_instances: int | None = None
    max_instances: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.period_s <= 86_400:
            raise InvalidArgument(f"--period must be between 1 and 86,400 seconds, got {self.period_s:g}")
        if not 0 <= self.min_gain < 1:
            raise InvalidArgument(f"--min-gain must be at least 0 and less than 1, got {self.min_gain:g}")
        for name, value in (("min", self.min_instances), ("max", self.max_instances)):
            if value is not None and value < 1:
                raise InvalidArgument(f"--{name}-instances must be at least 1, got {value}")
        if (
            self.min_instances is not None
            and self.max_instances is not None
            and self.min_instances > self.max_instances
        ):
            raise InvalidArgument(f"--min-instances {self.min_instances} exceeds --max-instances {self.max_instances}")


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Published properties of a model.

    Args:
        lengths: The runtimes' `max_length` in tokens, ascending.
        latencies_s: Latency of one query padded to each runtime, in seconds.
        slo_s: Latency objective, in seconds.
    """

    lengths: tuple[int, ...]
    latencies_s: tuple[float, ...]
    slo_s: float


@dataclass(frozen=True, slots=True)
class AllocationDecision:
    """A decision and its reason.

    Attributes:
        action: "keep", "allocate" (Arlo, Eqs. 1 to 7), "add" or "release" (resource scaling, §4).
        reason: Rule that decided, as a clause for the log.
        before: Current instances by runtime.
        after: Instances by runtime to change to.
        observed: Traffic that the decision is based on.
        demand: Queries per SLO period by runtime (Q_i); empty if the decision does not use it.
        mean_before_s: Predicted mean latency with `before`, in seconds; None if not predicted.
        mean_best_s: Predicted mean latency with the best allocation of as many instances, in seconds.
        shortfall: Sentence about the instances that the SLO lacks; None if it lacks none.
        gpus_short: Number of these instances.
    """

    action: Action
    reason: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    observed: ModelCounts
    demand: tuple[float, ...] = ()
    mean_before_s: float | None = None
    mean_best_s: float | None = None
    shortfall: str | None = None
    gpus_short: int = 0


class ModelController:
    """Decides for one model: call `observe` with new counts, then `decide`.

    Args:
        profile: Published properties of the model.
        settings: Settings of the controller.
        devices: Number of instances that the devices can hold.
        now: Current time on the caller's clock, in seconds.
    """

    def __init__(self, profile: ModelProfile, settings: ControllerSettings, devices: int, now: float) -> None:
        self.profile = profile
        self._settings = settings
        self._runtimes = tuple(
            RuntimeProfile.from_service(latency, profile.slo_s, settings.period_s) for latency in profile.latencies_s
        )
        self._observed = self._previous = ModelCounts.none(len(profile.lengths))
        self._min_instances, self._max_instances = self._bounds(devices)
        self._scaler = self._new_scaler(now)

    def observe(self, counts: ModelCounts) -> None:
        """Add the counts since the last call."""
        self._observed += counts
        if self._scaler is not None:
            self._scaler.observe(counts.requests, counts.slow, counts.critical)

    def decide(self, now: float, present: Sequence[int], devices: int) -> AllocationDecision | None:
        """Return the decision for now, or None if there is nothing to decide yet. Call it about once per second.

        Args:
            now: Current time on the caller's clock, in seconds.
            present: Current instances by runtime.
            devices: Number of instances that the devices can hold now (G).
        """
        before, instances = tuple(present), sum(present)
        if self._bounds(devices) != (self._min_instances, self._max_instances):
            self._min_instances, self._max_instances = self._bounds(devices)
            self._scaler = self._new_scaler(now)
        if instances < self._min_instances:
            given = self._settings.min_instances is not None
            least = f"the minimum of {self._min_instances}" if given else f"the {self._min_instances} that devices hold"
            return self._add(before, f"{instances} instances are below {least}")
        if instances > self._max_instances:
            given = self._settings.max_instances is not None
            most = f"the maximum of {self._max_instances}" if given else f"the {self._max_instances} that devices hold"
            return self._release(before, f"{instances} instances are above {most}")
        wanted = self._scaler.decide(now, instances) if self._scaler is not None else None
        if wanted is Scaling.ADD:
            return self._add(before, wanted.reason)
        if wanted is Scaling.RELEASE:
            released = self._release(before, wanted.reason)
            if released is not None:
                return released
        # Only seconds in which the server answered count: little traffic before an outage decides nothing.
        if self._observed.seconds < self._settings.period_s:
            return None
        observed, self._observed = self._observed, ModelCounts.none(len(before))
        self._previous = observed
        return self._allocate(before, observed)

    def changed(self, now: float) -> None:
        """Restart scaling after a change of the instances, since earlier latencies no longer apply."""
        self._scaler = self._new_scaler(now)

    def _bounds(self, devices: int) -> tuple[int, int]:
        """Return the minimum and maximum number of instances."""
        lowest, highest = self._settings.min_instances, self._settings.max_instances
        if lowest is None:
            lowest = devices if highest is None else min(devices, highest)
        return lowest, max(devices, lowest) if highest is None else highest

    def _new_scaler(self, now: float) -> Autoscaler | None:
        if self._min_instances == self._max_instances:
            return None
        return Autoscaler(self.profile.slo_s, min_gpus=self._min_instances, max_gpus=self._max_instances, now=now)

    def _allocate(self, before: tuple[int, ...], observed: ModelCounts) -> AllocationDecision:
        if not any(observed.queries):
            return AllocationDecision("keep", "there were no queries", before, before, observed)
        lengths, slo_s = self.profile.lengths, self.profile.slo_s
        histogram = dict(zip(lengths, observed.queries, strict=True))
        demand = demand_by_runtime(histogram, lengths, observed_s=observed.seconds, slo_s=slo_s)
        found = reallocate(AllocationProblem(sum(before), self._runtimes, demand), before, self._settings.min_gain)
        if found is None:  # demand rounds to 0 in the solver
            return AllocationDecision(
                "keep", "there were too few queries to decide on", before, before, observed, demand
            )
        (after,) = place(found.after, [sum(found.after)], self._loads(before))
        if after != before:
            reason = f"the best allocation is predicted to be {100 * found.gain:.0f} % faster"
        elif found.solution.instances == before:
            reason = "the current allocation is the best one"
        else:
            best = " ".join(f"{n}={count}" for n, count in zip(lengths, found.solution.instances, strict=True))
            gain, least = 100 * found.gain, 100 * self._settings.min_gain
            reason = f"{best} is predicted to be {gain:.1f} % faster, below the minimum gain of {least:g} %"
        return AllocationDecision(
            "keep" if after == before else "allocate",
            reason,
            before,
            after,
            observed,
            demand,
            found.mean_before_s,
            found.mean_best_s,
            found.solution.shortfall,
            found.solution.gpus_short,
        )

    def _add(self, before: tuple[int, ...], reason: str) -> AllocationDecision:
        return AllocationDecision("add", reason, before, (*before[:-1], before[-1] + 1), self._observed)

    def _release(self, before: tuple[int, ...], reason: str) -> AllocationDecision | None:
        """Release the least busy instance; None if only the last instance of the longest runtime is left."""
        leaving = least_busy(self._loads(before), len(before) - 1)
        if leaving is None:
            return None
        after = tuple(count - (runtime == leaving.runtime) for runtime, count in enumerate(before))
        return AllocationDecision("release", reason, before, after, self._observed)

    def _loads(self, instances: Sequence[int]) -> list[InstanceLoad]:
        """Return the mean busy time of each instance; it includes the previous period: the current one may be new."""
        busy_s = (self._previous + self._observed).busy_s
        runtimes = [runtime for runtime, count in enumerate(instances) for _ in range(count)]
        return [
            InstanceLoad(lane, runtime, busy_s[runtime] / instances[runtime]) for lane, runtime in enumerate(runtimes)
        ]
