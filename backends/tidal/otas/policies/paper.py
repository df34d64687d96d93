"""The published policy: Algorithms 1 to 3, by sample-level latencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tidal.otas.policies.allocation import by_arrival_rate, by_dynamic_programme
from tidal.otas.policies.base import GroupedPolicy
from tidal.otas.policies.costs import FloatArray
from tidal.otas.policies.groups import Batching, Group
from tidal.otas.policies.rate import ArrivalRate
from tidal.otas.policies.types import CostProfile, Query


@dataclass(frozen=True, slots=True)
class PaperSettings:
    """The published thresholds.

    Args:
        batching: Algorithm 1's.
        few: batches up to which the arrival rate decides, rather than the dynamic programme (β).
        initial_s: seconds from the first query on in which it decides, too.
        critical: mean utility above which Algorithm 3 gives a batch the largest γ (κ).
    """

    batching: Batching = field(default_factory=Batching)
    few: int = 5
    initial_s: float = 2.0
    critical: float = 0.8


class PaperPolicy(GroupedPolicy):
    """Algorithm 1 groups the queries, Algorithm 2 or 3 gives every group a γ, and the one with the earliest deadline
    runs. All that waits is allocated anew at every decision.

    A group that is not executed waits on, in case a later allocation executes it. Where none is executed, because each
    group holds a query that cannot be in time any more with all others, the first runs at the smallest γ without it.

    Args:
        profile: measured.
        memory_bytes: that a batch may take (M_GPU); None is no limit.
        settings: the thresholds.
    """

    def __init__(
        self,
        profile: CostProfile,
        *,
        memory_bytes: int | None = None,
        settings: PaperSettings = PaperSettings(),
    ) -> None:
        super().__init__(profile, memory_bytes=memory_bytes)
        size = min(settings.batching.size, int(np.isfinite(self._costs.seconds[0]).sum()) - 1)
        self._settings = settings
        self._batching = replace(settings.batching, size=size)
        self._rate = ArrivalRate()

    def _find(self, query: Query) -> Group | None:
        return self._batching.find(query, self._groups)

    def _arrived(self, query: Query, group: Group, earned: FloatArray, now: float) -> None:
        self._rate.add(now)

    def _choose(self, now: float) -> tuple[Sequence[Query], int]:
        groups = sorted(self._groups, key=lambda group: group.deadline)
        for group, place in zip(groups, self._allocate(now, groups), strict=True):
            if place is not None:
                return group.queries, place
        return groups[0].queries, 0

    def _allocate(self, now: float, groups: Sequence[Group]) -> Sequence[int | None]:
        """The place of each group's γ (Algorithm 2); groups are in the order of their deadlines."""
        deadlines = [group.deadline for group in groups]
        sizes = np.array([len(group) for group in groups])
        allowed = np.isfinite(self._costs.seconds[:, sizes])
        seconds = np.where(allowed, self._costs.sample_s[:, None] * sizes, np.inf).T.tolist()
        first = self._rate.first
        if len(groups) <= self._settings.few or first is None or now - first < self._settings.initial_s:
            place = self._costs.gammas.index(self._profile.gamma_for_rate(self._rate.at(now)))
            means = [group.mean_utility for group in groups]
            return by_arrival_rate(now, deadlines, seconds, means, place, self._settings.critical)
        return by_dynamic_programme(now, deadlines, seconds, [group.earnings.tolist() for group in groups])

    def _seconds(self, place: int, queries: int) -> float:
        return float(self._costs.sample_s[place] * queries)
