"""Dispatch at an entrance that knows the outstanding queries of the others as of their last exchange."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tidal.arlo.policies import PartitionedPolicy
from tidal.arlo.policies.levels import RuntimeInstance

#: Outstanding queries by node and runtime; None is the entrance's own node.
Outstanding = Mapping[str | None, Sequence[int]]


class InformedPolicy(PartitionedPolicy):
    """Algorithm 1 over loads that include the queries of other entrances, as far as they were reported."""

    def __init__(self, *arguments: object, **options: object) -> None:
        self._others: dict[int, int] = {}  # queries of other entrances by lane
        self._cells: dict[tuple[str | None, int], list[RuntimeInstance]] = {}
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def allocate(
        self,
        instances: Sequence[int],
        remote: Mapping[str, Sequence[int]] | None = None,
        share: float = 1.0,
        assigned: Collection[str] = (),
        *,
        accepts: bool = True,
    ) -> None:
        """Change the number of instances by runtime and node; see `PartitionedPolicy`. Loads are those of all."""
        super().allocate(instances, remote, accepts=accepts)
        self._cells = {}
        for lane, instance in self._instances.items():
            if lane not in self._leaving:
                self._cells.setdefault((instance.node, instance.runtime), []).append(instance)
        self._others = {lane: number for lane, number in self._others.items() if lane in self._instances}

    def own_outstanding(self) -> dict[str | None, list[int]]:
        """Return the queries of this entrance that are waiting or running, by node and runtime."""
        found: dict[str | None, list[int]] = {}
        for (node, runtime), instances in self._cells.items():
            row = found.setdefault(node, [0] * len(self._levels))
            row[runtime] = sum(instance.waiting + instance.running for instance in instances)
        return found

    def inform(self, others: Outstanding) -> None:
        """Set the outstanding queries of other entrances, shared equally by a node's instances of a runtime.

        Args:
            others: Their queries by node and runtime; nodes that are missing have none.
        """
        known = self._others
        for (node, runtime), instances in self._cells.items():
            row = others.get(node)
            each, left = divmod(row[runtime], len(instances)) if row is not None else (0, 0)
            for at, instance in enumerate(instances):
                number = each + (at < left)
                before = known.get(instance.lane, 0)
                if number != before:
                    known[instance.lane] = number
                    instance.added += number - before
                    self._levels[runtime].update(instance)
