"""Instances that are assigned to other entrances, and the loads that a dispatcher expects of them.

Arlo has one dispatcher, which knows the outstanding queries of every instance (§3.4). One of several entrances knows
its own only. Where each entrance is assigned its share of the instances of every runtime, entrances use what is
assigned to them first, and the instances of others are candidates of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidal.arlo.policies.levels import RuntimeInstance, RuntimeLevel

#: Queries that an instance of another entrance is expected to have of that one, and which make it the second choice.
#: Simulated with 25 and 125 nodes, 1 and 2 are about as good. With 0.5, entrances use each other's instances too often.
_OF_ITS_ENTRANCE = 1.5
#: Largest imbalance at which entrances are taken for alike: four of 16 to 125 nodes have up to 0.07. Four of ten nodes
#: have 0.1, where some have no instance of a runtime at all.
_MAX_IMBALANCE = 0.08


class OthersLevel(RuntimeLevel):
    """The instances of one runtime that are assigned to other entrances; see `RuntimeLevel`."""

    beside_own = False
    """Whether this entrance has instances of the runtime too."""

    def expected_load(self, share: float) -> float:
        """Return the outstanding queries of all entrances that the head is expected to have; see `RuntimeLevel`.

        If this entrance has no such instance, its queries are expected there as any others.
        """
        return self.head().load / share + (_OF_ITS_ENTRANCE if self.beside_own else 0.0)


def divide(
    levels: Sequence[RuntimeLevel],
    others: Sequence[OthersLevel],
    instances: Sequence[Sequence[RuntimeInstance]],
    assigned: Collection[str],
    share: float,
) -> None:
    """Arrange the instances of each runtime, those of other entrances apart if the instances are divided evenly.

    If each entrance has its own node alone, nothing was assigned that would make them even, and entrances use each
    other's instances more: simulated with four nodes of 40 devices at 90 % load, the mean is 0.78 times that of one
    entrance where they are not divided, and 0.88 times where they are.

    Args:
        levels: Levels of the instances that this entrance uses first; of all if they are not divided.
        others: Levels of those that other entrances use first.
        instances: Instances by runtime, in the order in which equally loaded ones are preferred.
        assigned: Other nodes that are assigned to this entrance; those of its own node are too.
        share: Share of the queries that arrive at this entrance; 1: they are not divided.
    """
    rows = [[each for each in row if each.node is None or each.node in assigned] for row in instances]
    divided = (
        share < 1
        and any(each.node is not None for own in rows for each in own)
        and imbalance([*map(len, rows)], [*map(len, instances)], share) <= _MAX_IMBALANCE
    )
    for level, other, own, row in zip(levels, others, rows, instances, strict=True):
        other.arrange(())
        level.arrange(own if divided else row)
        other.arrange(each for each in row if each.order < 0)
        level.others, other.beside_own = other if len(other) else None, bool(own)


def imbalance(own: Sequence[int], total: Sequence[int], share: float) -> float:
    """Return the share of an entrance's instances that are of other runtimes than its share of each would be.

    Args:
        own: Its instances by runtime.
        total: Instances of all entrances by runtime.
        share: Its share of the queries.
    """
    return sum(abs(has - share * of) for has, of in zip(own, total, strict=True)) / (2 * share * max(1, sum(total)))
