"""From the instances that run to those that are wanted (Arlo §4, instance replacement)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidal.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Replacement:
    """One GPU changes its runtime; None stands for a GPU that is new (`source`) or given back (`target`)."""

    source: int | None
    target: int | None


def replacement_plan(current: Sequence[int], wanted: Sequence[int]) -> list[Replacement]:
    """The fewest changes that lead from one allocation to the other, in the order in which to make them.

    A GPU whose runtime is wanted keeps it, so no runtime ever has fewer instances than the smaller of both counts.
    New GPUs take what is lacking before any other is replaced. Runtimes give and get in turn, in proportion to how
    much they give and get, so that none is stripped or filled at once; of equals, short ones give and long ones get
    first, because a long runtime can stand in for a short one.

    Args:
        current: instances by runtime that run.
        wanted: instances by runtime to run.

    Raises:
        InvalidArgument: the lists differ in length or hold a negative count.
    """
    if len(current) != len(wanted):
        raise InvalidArgument(
            f"current and wanted must have a count for the same runtimes, got {len(current)} and {len(wanted)} counts"
        )
    if any(count < 0 for count in (*current, *wanted)):
        raise InvalidArgument(f"counts must not be negative, got {tuple(current)} and {tuple(wanted)}")
    surplus = [max(0, have - want) for have, want in zip(current, wanted, strict=True)]
    lacking = [max(0, want - have) for have, want in zip(current, wanted, strict=True)]
    givers: list[int | None] = list(_in_turn(surplus, range(len(surplus))))
    takers: list[int | None] = list(_in_turn(lacking, range(len(lacking) - 1, -1, -1)))
    fresh, freed = max(0, len(takers) - len(givers)), max(0, len(givers) - len(takers))
    sources, targets = [None] * fresh + givers, takers + [None] * freed
    return [Replacement(source, target) for source, target in zip(sources, targets, strict=True)]


def replacement_batches(plan: Sequence[Replacement], size: int) -> list[list[Replacement]]:
    """The plan in batches of at most `size` changes, each to be finished before the next begins."""
    if size < 1:
        raise InvalidArgument(f"size must be at least 1 change, got {size}")
    return [list(plan[start : start + size]) for start in range(0, len(plan), size)]


def _in_turn(counts: Sequence[int], order: Sequence[int]) -> list[int]:
    """Each index as often as its count says, spread evenly; equals in the given order."""
    rank = {index: at for at, index in enumerate(order)}
    turns = [((turn + 0.5) / counts[index], rank[index], index) for index in order for turn in range(counts[index])]
    return [index for _, _, index in sorted(turns)]
