"""Dispatch rules of the systems that Arlo is compared with (Arlo §5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidal.arlo.policies import PartitionedPolicy
from tidal.arlo.policies.levels import RuntimeInstance, RuntimeLevel


class LeastPadding(PartitionedPolicy):
    """Selects the least loaded instance of the shortest runtime that fits: intra-group load balance, ILB (Table 4).

    With one runtime this is the load balancing of ST and DT.
    """

    def _choose(self, candidates: Sequence[RuntimeLevel]) -> tuple[RuntimeLevel, RuntimeInstance]:
        return candidates[0], candidates[0].head()


class LeastLoaded(PartitionedPolicy):
    """Selects the instance with the fewest outstanding queries of all runtimes: inter-groups greedy, IG (Table 4).

    Ties go to the shortest runtime.
    """

    def _choose(self, candidates: Sequence[RuntimeLevel]) -> tuple[RuntimeLevel, RuntimeInstance]:
        heads = [(level, level.head()) for level in candidates]
        return min(heads, key=lambda each: each[1].load)


class BinPacking(PartitionedPolicy):
    """INFaaS in Arlo's evaluation: selects the fullest instance with free capacity whose runtime fits.

    An instance is a bin; its level is outstanding queries over capacity. Ties go to the shortest runtime; if all bins
    are full, the least full one is selected.

    Args:
        arguments: Positional arguments of `PartitionedPolicy`.
        fill: Share of an instance's capacity that may be used, at least one query.
        options: Keyword arguments of `PartitionedPolicy`.
    """

    def __init__(self, *arguments: Any, fill: float, **options: Any) -> None:
        self._fill = fill
        super().__init__(*arguments, **options)

    def _make_level(self, max_length: int, capacity: int, seconds: float) -> RuntimeLevel:
        return _Bins(max_length, capacity, seconds, max(1, round(self._fill * capacity)))

    def _choose(self, candidates: Sequence[RuntimeLevel]) -> tuple[RuntimeLevel, RuntimeInstance]:
        chosen: tuple[RuntimeLevel, RuntimeInstance] | None = None
        fullest = -1.0
        for level in candidates:
            assert isinstance(level, _Bins)
            instance = level.fullest()
            if instance is not None and instance.load / level.capacity > fullest:
                chosen, fullest = (level, instance), instance.load / level.capacity
        if chosen is not None:
            return chosen
        heads = [(level, level.head()) for level in candidates]
        return min(heads, key=lambda each: each[1].load / each[0].capacity)


class _Bins(RuntimeLevel):
    """A level that also tracks its fullest instance with free capacity.

    Args:
        max_length: Maximum length of the runtime's queries, in tokens.
        capacity: Queries that one instance finishes within the SLO.
        seconds: Latency of one query padded to the runtime, in seconds.
        room: Maximum number of outstanding queries per instance.
    """

    def __init__(self, max_length: int, capacity: int, seconds: float, room: int) -> None:
        super().__init__(max_length, capacity, seconds)
        self._by_load: list[dict[int, RuntimeInstance]] = [{} for _ in range(room)]  # below `room`, by lane
        self._loads: dict[int, int] = {}

    def arrange(self, instances: Iterable[RuntimeInstance]) -> None:
        super().arrange(instances)
        lanes = {instance.lane for instance in self}
        for lane in self._loads.keys() - lanes:
            self._forget(lane)
        for instance in self:
            if instance.lane not in self._loads:
                self._note(instance)

    def update(self, instance: RuntimeInstance) -> None:
        super().update(instance)
        self._forget(instance.lane)
        if instance.order >= 0:
            self._note(instance)

    def fullest(self) -> RuntimeInstance | None:
        """Return the fullest instance with free capacity, or None."""
        for instances in reversed(self._by_load):
            if instances:
                return next(iter(instances.values()))
        return None

    def _note(self, instance: RuntimeInstance) -> None:
        if instance.load < len(self._by_load):
            self._loads[instance.lane] = instance.load
            self._by_load[instance.load][instance.lane] = instance

    def _forget(self, lane: int) -> None:
        load = self._loads.pop(lane, None)
        if load is not None:
            del self._by_load[load][lane]
