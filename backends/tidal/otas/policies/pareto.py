"""Policy beyond the paper: groups of similar queries, and plans by labels of time and earnings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest

import numpy as np

from tidal.otas.policies.base import GroupedPolicy
from tidal.otas.policies.costs import FloatArray
from tidal.otas.policies.groups import Group
from tidal.otas.policies.labels import best_plan
from tidal.otas.policies.price import PriceOfTime
from tidal.otas.policies.rate import ArrivalRate
from tidal.otas.policies.types import Batch, CostProfile, Query

# Queries are similar if their utilities differ by less than a factor of about 2, their latencies by one of 1.4, and
# their deadlines by this share of the requested latency.
_SIMILAR = 0.2
# Maximum number of groups per plan, of labels in a plan, and of pairs of a first and a last group of a batch: together
# they bound the time of a decision.
_GROUPS = 40
_LABELS = 320
_PAIRS = 48
# Step of the correction by measured times, and the share of batches that should end within their prediction.
_LEARNING_STEP = 0.02
_WITHIN_PREDICTION = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A group that is planned, or a part of one.

    Attributes:
        queries: Queries of the part.
        deadline: Earliest deadline, in seconds.
        earnings: Sum of the expected utilities by γ, of shape [gammas].
    """

    queries: Sequence[Query]
    deadline: float
    earnings: FloatArray


class ParetoPolicy(GroupedPolicy):
    """Plans all waiting queries at each decision, and starts the first batch of the plan.

    Similar queries are planned together, in groups of close deadlines. A plan may run consecutive groups by deadline in
    one batch, and may leave out groups; if a group cannot be in time as a whole, its urgent queries are planned
    separately. A plan weighs the earnings of a batch against the price of its time, which is what future queries would
    earn in it, so that the queue does not use all the time that its own deadlines allow. If nothing earns its price,
    the part with the highest earnings per second runs, because an idle engine earns nothing.

    Latencies are those measured for whole batches, multiplied by a factor that is adapted to the latencies observed.

    Args:
        profile: Measured costs and accuracies.
        memory_bytes: Memory limit of a batch, in bytes; None for no limit.
    """

    def __init__(self, profile: CostProfile, *, memory_bytes: int | None = None) -> None:
        super().__init__(profile, memory_bytes=memory_bytes)
        self._largest = int(np.isfinite(self._costs.seconds[0]).sum()) - 1
        self._rate = ArrivalRate()
        best_s = self._costs.seconds[:, 1:] / np.arange(1, self._costs.max_batch + 1)
        self._price = PriceOfTime(best_s.min(axis=1))
        self._latest: dict[tuple[int, int], Group] = {}
        self._profiled = self._costs
        self._slowness = 1.0

    def _group_for(self, query: Query) -> Group | None:
        group = self._latest.get(_kind(query))
        if group is None or len(group) >= self._largest:
            return None
        similar = abs(query.deadline - group.deadline) <= _SIMILAR * (query.deadline - query.arrival)
        return group if similar else None

    def _added(self, query: Query, group: Group, earned: FloatArray, now: float) -> None:
        self._rate.add(now)
        self._price.add(earned)
        self._latest[_kind(query)] = group

    def _removed(self, group: Group) -> None:
        for kind, latest in list(self._latest.items()):
            if latest is group:
                del self._latest[kind]

    def _choose(self, now: float) -> tuple[Sequence[Query], int]:
        parts = self._parts(now)
        sizes = [len(part.queries) for part in parts]
        plan = best_plan(
            now,
            [part.deadline for part in parts],
            sizes,
            np.stack([part.earnings for part in parts]),
            self._costs,
            price=self._price_now(now),
            labels=max(8, _LABELS // len(parts)),
            joined=max(1, _PAIRS // len(parts)),
        )
        if plan:
            run = plan[0]
            return [query for part in parts[run.start : run.stop] for query in part.queries], run.gamma_index
        return self._best_alone(now, parts, sizes)

    def _ran(self, batch: Batch, seconds: float) -> None:
        gamma_index = self._costs.gammas.index(batch.gamma)
        predicted = float(self._profiled.seconds[gamma_index, len(batch.queries)]) * self._slowness
        share = _WITHIN_PREDICTION if seconds > predicted else _WITHIN_PREDICTION - 1
        self._slowness *= math.exp(_LEARNING_STEP * share)
        self._costs = self._profiled.slowed(self._slowness)

    def _price_now(self, now: float) -> float:
        """Return the price of a second of the engine at the current arrival rate."""
        rate = self._rate.at(now)
        return self._price.at(1 / (rate * self._slowness)) if rate > 0 else 0.0

    def _parts(self, now: float) -> list[_Part]:
        """Return the groups to plan, some in two parts, in the order of deadlines."""
        parts: list[_Part] = []
        for group in self._groups:
            ends = now + float(self._costs.seconds[:, len(group)].min())
            if ends <= group.deadline:
                parts.append(_Part(group.queries, group.deadline, group.earnings))
                continue
            urgent = [query for query in group.queries if query.deadline < ends]
            parts.append(self._part(urgent))
            if len(urgent) < len(group):
                parts.append(self._part([query for query in group.queries if query.deadline >= ends]))
        if len(parts) > _GROUPS:
            alone_s = self._costs.sample_s
            parts = nlargest(
                _GROUPS, parts, key=lambda part: float((part.earnings / alone_s).max()) / len(part.queries)
            )
        return sorted(parts, key=lambda part: part.deadline)

    def _part(self, queries: Sequence[Query]) -> _Part:
        earned = np.sum([self._waiting[query][1] for query in queries], axis=0)
        return _Part(queries, min(query.deadline for query in queries), earned)

    def _best_alone(self, now: float, parts: Sequence[_Part], sizes: Sequence[int]) -> tuple[Sequence[Query], int]:
        """Return the part and γ with the highest earnings per second, among parts in time if there are any."""
        takes = self._costs.seconds[:, sizes].T
        per_second = np.stack([part.earnings for part in parts]) / takes
        in_time = now + takes <= np.array([part.deadline for part in parts])[:, None]
        if in_time.any():
            per_second[~in_time] = -1.0
        which, gamma_index = np.unravel_index(int(per_second.argmax()), per_second.shape)
        return parts[int(which)].queries, int(gamma_index)


def _kind(query: Query) -> tuple[int, int]:
    """Return the class of queries of similar utility and latency."""
    utility = round(math.log2(query.utility)) if query.utility > 0 else -1075  # below that of every float
    return utility, round(2 * math.log2(max(query.deadline - query.arrival, 1e-6)))
