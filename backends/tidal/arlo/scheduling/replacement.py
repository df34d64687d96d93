"""Replacement of instances from one allocation to another (Arlo §4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidal.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Replacement:
    """A change of one GPU's runtime; None: the GPU is new (`source`) or released (`target`).

    Attributes:
        source: Runtime of the instance that ends.
        target: Runtime of the instance that starts.
        node: Node of the GPU.
    """

    source: int | None
    target: int | None
    node: int = 0


def replacement_plan(current: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> list[Replacement]:
    """Return the minimum sequence of changes from one placement to another.

    GPUs keep their runtime where possible, so no runtime ever has fewer instances than the smaller of both counts. New
    GPUs are used before others are replaced. Changes alternate between runtimes in proportion to their differences, so
    that no runtime loses or gains all its instances at once. Ties: short runtimes lose first and long ones gain first,
    because a long runtime can serve the queries of a short one. Nodes alternate in the same way.

    Args:
        current: Current instances by node and runtime.
        wanted: Instances by node and runtime to change to.

    Raises:
        InvalidArgument: The lists differ in length or have a negative count.
    """
    if len(current) != len(wanted):
        raise InvalidArgument(
            f"current and wanted must have counts for the same nodes, got {len(current)} and {len(wanted)} nodes"
        )
    plans = [_plan_node(node, *pair) for node, pair in enumerate(zip(current, wanted, strict=True))]
    following = [iter(plan) for plan in plans]
    return [next(following[node]) for node in _interleaved([len(plan) for plan in plans], range(len(plans)))]


def replacement_batches(plan: Sequence[Replacement], size: int) -> list[list[Replacement]]:
    """Split a plan into batches of at most `size` changes; a batch completes before the next begins."""
    if size < 1:
        raise InvalidArgument(f"size must be at least 1 change, got {size}")
    return [list(plan[start : start + size]) for start in range(0, len(plan), size)]


def _plan_node(node: int, current: Sequence[int], wanted: Sequence[int]) -> list[Replacement]:
    if len(current) != len(wanted):
        raise InvalidArgument(
            f"current and wanted must have a count for the same runtimes, got {len(current)} and {len(wanted)} counts"
        )
    if any(count < 0 for count in (*current, *wanted)):
        raise InvalidArgument(f"counts must not be negative, got {tuple(current)} and {tuple(wanted)}")
    surplus = [max(0, have - want) for have, want in zip(current, wanted, strict=True)]
    lacking = [max(0, want - have) for have, want in zip(current, wanted, strict=True)]
    losing: list[int | None] = list(_interleaved(surplus, range(len(surplus))))
    gaining: list[int | None] = list(_interleaved(lacking, range(len(lacking) - 1, -1, -1)))
    fresh, freed = max(0, len(gaining) - len(losing)), max(0, len(losing) - len(gaining))
    sources, targets = [None] * fresh + losing, gaining + [None] * freed
    return [Replacement(source, target, node) for source, target in zip(sources, targets, strict=True)]


def _interleaved(counts: Sequence[int], order: Sequence[int]) -> list[int]:
    """Return each index as often as its count, evenly interleaved; ties in the given order."""
    rank = {index: at for at, index in enumerate(order)}
    positions = [((n + 0.5) / counts[index], rank[index], index) for index in order for n in range(counts[index])]
    return [index for _, _, index in sorted(positions)]
