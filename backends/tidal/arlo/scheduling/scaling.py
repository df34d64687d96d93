"""When to add and when to release a GPU (Arlo §4, resource scaling)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tidal.errors import InvalidArgument

OUT_AT = 0.95  # share of the SLO that the 98th percentile reaches: add one
IN_BELOW = 0.50  # share of the SLO below which it stays: release one
_OUT_S = 5.0
_IN_S = 60.0


class Scaling(Enum):
    """What to do about the number of GPUs."""

    ADD = "add"  # one instance of the longest runtime
    RELEASE = "release"  # `least_busy`


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """How busy an instance is; `load` in any unit that is the same for all."""

    lane: int
    runtime: int
    load: float


class Autoscaler:
    """Target tracking on the 98th percentile of latency.

    Adds a GPU when the percentile over the last 5 seconds reaches 95 % of the SLO; releases one when it was below
    50 % of the SLO over 60 seconds (an idle minute counts as such). The paper leaves open how long "recently" is for
    adding: 5 s hold hundreds of requests at the loads of its evaluation and let an added instance, which takes about
    1 s to start, show its effect before another follows. Either action starts both windows anew. No latencies are
    kept: whether the percentile reaches a limit follows from how many requests do.

    Args:
        slo_s: the SLO, seconds.
        fewest: GPUs never to go below, at least 1.
        most: GPUs never to go above.
        now: seconds on the caller's clock.
    """

    def __init__(self, slo_s: float, *, min_gpus: int, max_gpus: int, now: float = 0.0) -> None:
        if not 0 < slo_s < math.inf:
            raise InvalidArgument(f"slo_s must be a positive, finite number of seconds, got {slo_s}")
        if not 1 <= min_gpus <= max_gpus:
            raise InvalidArgument(
                f"min_gpus must be between 1 and max_gpus, got min_gpus {min_gpus} and max_gpus {max_gpus}"
            )
        self.out_s = OUT_AT * slo_s
        self.in_s = IN_BELOW * slo_s
        self._min_gpus, self._max_gpus = min_gpus, max_gpus
        self._recent_since = self._all_since = now
        self._recent = self._critical = self._all = self._slow = 0

    def completed(self, latency_s: float) -> None:
        """A request was answered after `latency_s` seconds."""
        self.observe(1, int(latency_s >= self.in_s), int(latency_s >= self.out_s))

    def observe(self, requests: int, slow: int, critical: int) -> None:
        """Requests answered, and how many of them took at least `in_s` and `out_s` seconds."""
        self._recent += requests
        self._critical += critical
        self._all += requests
        self._slow += slow

    def decide(self, now: float, gpus: int) -> Scaling | None:
        """What to do now with so many GPUs; call it about every second."""
        reached = False
        if now - self._recent_since >= _OUT_S:
            reached = _percentile_reached(self._recent, self._critical)
            self._recent_since, self._recent, self._critical = now, 0, 0
        if reached and gpus < self._max_gpus:
            self._restart(now)
            return Scaling.ADD
        if now - self._all_since < _IN_S:
            return None
        calm = not _percentile_reached(self._all, self._slow)
        self._all_since, self._all, self._slow = now, 0, 0
        if not calm or gpus <= self._min_gpus:
            return None
        self._restart(now)
        return Scaling.RELEASE

    def _restart(self, now: float) -> None:
        self._recent_since = self._all_since = now
        self._recent = self._critical = self._all = self._slow = 0


def least_busy(instances: Sequence[InstanceLoad], longest: int) -> InstanceLoad | None:
    """The instance to release: the least busy one, but never the last of the runtime `longest` (Eq. 7).

    Of equals a shorter runtime goes first. None when there is none to release.
    """
    last_of_longest = sum(instance.runtime == longest for instance in instances) == 1
    spare = [instance for instance in instances if instance.runtime != longest or not last_of_longest]
    return min(spare, key=lambda instance: (instance.load, instance.runtime, instance.lane), default=None)


def _percentile_reached(requests: int, reaching: int) -> bool:
    """Whether the 98th percentile (nearest rank) reaches a limit that `reaching` of the requests reach."""
    return requests - reaching < (98 * requests + 99) // 100
