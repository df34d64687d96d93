"""Addition and release of GPUs (Arlo §4, resource scaling)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tidal.errors import InvalidArgument

OUT_AT = 0.95  # add a GPU when the 98th percentile reaches this share of the SLO
IN_BELOW = 0.50  # release a GPU when it stays below this share
_OUT_S = 5.0
_IN_S = 60.0


class Scaling(Enum):
    """Scaling decisions."""

    ADD = "add"  # one instance of the longest runtime
    RELEASE = "release"  # `least_busy`

    @property
    def reason(self) -> str:
        """The rule that decided, as a clause."""
        if self is Scaling.ADD:
            return f"the 98th percentile of the latency reached {100 * OUT_AT:g} % of the SLO"
        return f"the 98th percentile of the latency stayed below {100 * IN_BELOW:g} % of the SLO for {_IN_S:g} s"


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """Load of an instance, in any unit common to all instances.

    Attributes:
        lane: Number of the instance.
        runtime: Index of its runtime.
        load: Its load.
        node: Index of the node that it runs on.
    """

    lane: int
    runtime: int
    load: float
    node: int = 0


class Autoscaler:
    """Target tracking on the 98th percentile of latency.

    Adds a GPU when the percentile over the last 5 seconds reaches 95 % of the SLO, and releases one when it was below
    50 % of the SLO for 60 seconds, idle time included. The paper does not specify the window for adding: 5 s contain
    hundreds of requests at the loads of its evaluation, and an added instance, which starts in about 1 s, takes effect
    before another one follows. Each action restarts both windows. No latencies are stored: the counts of requests above
    the limits determine whether the percentile reaches them.

    Args:
        slo_s: Latency objective, in seconds.
        min_gpus: Minimum number of GPUs, at least 1.
        max_gpus: Maximum number of GPUs.
        now: Current time on the caller's clock, in seconds.
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
        """Record a request that was answered after `latency_s` seconds."""
        self.observe(1, int(latency_s >= self.in_s), int(latency_s >= self.out_s))

    def observe(self, requests: int, slow: int, critical: int) -> None:
        """Record answered requests.

        Args:
            requests: Number of answered requests.
            slow: Number of them that took at least `in_s` seconds.
            critical: Number of them that took at least `out_s` seconds.
        """
        self._recent += requests
        self._critical += critical
        self._all += requests
        self._slow += slow

    def decide(self, now: float, gpus: int) -> Scaling | None:
        """Return the decision for now and a number of GPUs, or None. Call it about once per second."""
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
    """Return the least busy instance to release, or None; never the last one of the longest runtime (Eq. 7).

    Args:
        instances: Loads of all instances; ties go to the shorter runtime.
        longest: Index of the longest runtime.
    """
    last_of_longest = sum(instance.runtime == longest for instance in instances) == 1
    spare = [instance for instance in instances if instance.runtime != longest or not last_of_longest]
    return min(spare, key=lambda instance: (instance.load, instance.runtime, instance.lane), default=None)


def _percentile_reached(requests: int, reaching: int) -> bool:
    """Whether the 98th percentile (nearest rank) reaches a limit that `reaching` of the requests reach."""
    return requests - reaching < (98 * requests + 99) // 100
