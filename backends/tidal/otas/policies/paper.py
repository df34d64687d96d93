"""The published policy: Algorithms 1 to 3 with sample-level latencies."""

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
    """Published thresholds.

    Args:
        batching: Thresholds of Algorithm 1.
        few: Number of batches up to which Algorithm 3 decides rather than Algorithm 2 (β).
        initial_s: Time after the first query in which Algorithm 3 decides, too, in seconds.
        critical: Mean utility above which Algorithm 3 gives a batch the largest γ (κ).
    """

    batching: Batching = field(default_factory=Batching)
    few: int = 5
    initial_s: float = 2.0
    critical: float = 0.8


class PaperPolicy(GroupedPolicy):
    """Groups queries by Algorithm 1, allocates γ by Algorithm 2 or 3, and runs the earliest deadline first.

    All waiting groups are allocated again at each decision. A group that is not executed keeps waiting, because a later
    allocation may execute it. If none is executed, because each group contains a query that would be late together with
    the others, the first group runs at the smallest γ without that query.

    Args:
        profile: Measured costs and accuracies.
        memory_bytes: Memory limit of a batch (M_GPU), in bytes; None for no limit.
        settings: Thresholds.
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

    def _group_for(self, query: Query) -> Group | None:
        return self._batching.group_for(query, self._groups)

    def _added(self, query: Query, group: Group, earned: FloatArray, now: float) -> None:
        self._rate.add(now)

    def _choose(self, now: float) -> tuple[Sequence[Query], int]:
        groups = sorted(self._groups, key=lambda group: group.deadline)
        for group, gamma_index in zip(groups, self._allocate(now, groups), strict=True):
            if gamma_index is not None:
                return group.queries, gamma_index
        return groups[0].queries, 0

    def _allocate(self, now: float, groups: Sequence[Group]) -> Sequence[int | None]:
        """Return the index of each group's γ; groups are in the order of their deadlines."""
        deadlines = [group.deadline for group in groups]
        sizes = np.array([len(group) for group in groups])
        allowed = np.isfinite(self._costs.seconds[:, sizes])
        seconds = np.where(allowed, self._costs.sample_s[:, None] * sizes, np.inf).T.tolist()
        first = self._rate.first
        if len(groups) <= self._settings.few or first is None or now - first < self._settings.initial_s:
            gamma_index = self._costs.gammas.index(self._profile.gamma_for_rate(self._rate.at(now)))
            means = [group.mean_utility for group in groups]
            return by_arrival_rate(now, deadlines, seconds, means, gamma_index, self._settings.critical)
        return by_dynamic_programme(now, deadlines, seconds, [group.earnings.tolist() for group in groups])

    def _seconds(self, gamma_index: int, queries: int) -> float:
        return float(self._costs.sample_s[gamma_index] * queries)
