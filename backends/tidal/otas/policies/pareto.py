"""Beyond the paper: groups of queries alike, and a plan by labels of time and earnings."""

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

# Queries are alike whose utilities differ by less than about a factor of 2, latencies by one of 1.4, and deadlines by
# this share of the latency that was asked for.
_ALIKE = 0.2
# Groups that are planned for at a time, labels that are kept in a plan in all, and pairs of a first and a last group
# of a batch that are looked at: together they bound the time of a decision.
_GROUPS = 40
_LABELS = 320
_PAIRS = 48
# How fast measured times move predicted ones, and the share of batches that are to end as soon as predicted.
_STEP = 0.02
_AS_PREDICTED = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A group that is planned for, or a part of one."""

    queries: Sequence[Query]
    deadline: float
    earnings: FloatArray


class ParetoPolicy(GroupedPolicy):
    """Plans for everything that waits, anew at every decision, and starts the plan's first batch.

    Queries that are alike are planned for together, in groups of close deadlines. A plan may run groups in one batch
    that follow one another by deadline, and leave groups out; of a group that cannot be in time as a whole, those in
    a hurry are planned for apart. A plan weighs what a batch earns against the price of its time, which is what
    queries that are still to come would earn in it, so that a queue does not use up all time that its own deadlines
    leave. Where nothing is worth its price, what earns most a second runs: an idle engine earns nothing.

    Latencies are those that were measured for whole batches, times a factor that follows what batches really take.

    Args:
        profile: measured.
        memory_bytes: that a batch may take; None is no limit.
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

    def _find(self, query: Query) -> Group | None:
        group = self._latest.get(_kind(query))
        if group is None or len(group) >= self._largest:
            return None
        alike = abs(query.deadline - group.deadline) <= _ALIKE * (query.deadline - query.arrival)
        return group if alike else None

    def _arrived(self, query: Query, group: Group, earned: FloatArray, now: float) -> None:
        self._rate.add(now)
        self._price.add(earned)
        self._latest[_kind(query)] = group

    def _forget(self, group: Group) -> None:
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
            return [query for part in parts[run.start : run.stop] for query in part.queries], run.place
        return self._best_alone(now, parts, sizes)

    def _ran(self, batch: Batch, seconds: float) -> None:
        place = self._costs.gammas.index(batch.gamma)
        predicted = float(self._profiled.seconds[place, len(batch.queries)]) * self._slowness
        share = _AS_PREDICTED if seconds > predicted else _AS_PREDICTED - 1
        self._slowness *= math.exp(_STEP * share)
        self._costs = self._profiled.slowed(self._slowness)

    def _price_now(self, now: float) -> float:
        """Of a second of the engine, which is what is left of one for each query that comes."""
        rate = self._rate.at(now)
        return self._price.at(1 / (rate * self._slowness)) if rate > 0 else 0.0

    def _parts(self, now: float) -> list[_Part]:
        """What is planned for, in the order of deadlines."""
        parts: list[_Part] = []
        for group in self._groups:
            ends = now + float(self._costs.seconds[:, len(group)].min())
            if ends <= group.deadline:
                parts.append(_Part(group.queries, group.deadline, group.earnings))
                continue
            hasty = [query for query in group.queries if query.deadline < ends]
            parts.append(self._part(hasty))
            if len(hasty) < len(group):
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
        """What earns most a second, of what is in time as a whole if anything is."""
        takes = self._costs.seconds[:, sizes].T
        a_second = np.stack([part.earnings for part in parts]) / takes
        in_time = now + takes <= np.array([part.deadline for part in parts])[:, None]
        if in_time.any():
            a_second[~in_time] = -1.0
        which, place = np.unravel_index(int(a_second.argmax()), a_second.shape)
        return parts[int(which)].queries, int(place)


def _kind(query: Query) -> tuple[int, int]:
    """Queries whose utility and latency are of the same size."""
    utility = round(math.log2(query.utility)) if query.utility > 0 else -1075  # below any number's
    return utility, round(2 * math.log2(max(query.deadline - query.arrival, 1e-6)))
