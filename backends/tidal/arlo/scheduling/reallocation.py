"""The Runtime Scheduler's periodic decision: whether to reallocate, and in which steps (Arlo §3.3, §4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tidal.arlo.scheduling.placement import NodeCounts
from tidal.arlo.scheduling.problem import AllocationProblem
from tidal.arlo.scheduling.replacement import replacement_batches, replacement_plan
from tidal.arlo.scheduling.solution import Solution, solve

MIN_GAIN = 0.05


@dataclass(frozen=True, slots=True)
class Reallocation:
    """A decision about the allocation for a demand.

    Attributes:
        before: Current instances by runtime.
        after: Instances by runtime to change to: those of `solution`, or `before` if the gain is too small.
        solution: The best allocation.
        mean_before_s: Predicted mean latency with `before` in seconds, for the share of the demand that the solution
            serves.
        mean_best_s: The same with the best allocation.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    solution: Solution
    mean_before_s: float
    mean_best_s: float

    @property
    def gain(self) -> float:
        """Share of the mean latency that the best allocation saves, at least 0."""
        return max(0.0, 1.0 - self.mean_best_s / self.mean_before_s)


def reallocate(problem: AllocationProblem, present: Sequence[int], min_gain: float = MIN_GAIN) -> Reallocation | None:
    """Decide whether to reallocate for an observed demand; None if there is no demand.

    The paper reallocates for any gain. Each replacement takes an instance out of service for a while, so here a gain
    below `min_gain` changes nothing, unless the number of GPUs has changed.

    Args:
        problem: Observed demand, and the number of GPUs.
        present: Current instances by runtime, at least one of the last.
        min_gain: Share of the mean latency that a change must save.
    """
    if not problem.requests.any():
        return None
    before = tuple(present)
    solution = solve(problem)
    chosen_for = problem.scaled(solution.share)
    costs = chosen_for.costs(np.asarray([before, solution.instances]))
    mean_before, mean_best = (costs / max(chosen_for.requests.sum(), 1e-300)).tolist()
    found = Reallocation(before, solution.instances, solution, mean_before, mean_best)
    if sum(before) == problem.gpus and (found.gain < min_gain or found.gain <= 1e-9):
        return Reallocation(before, before, solution, mean_before, mean_best)
    return found


def batch_size(gpus: int) -> int:
    """Return the number of GPUs to replace at a time: the paper's "small batches" (§4), here a twentieth of all."""
    return max(1, gpus // 20)


def stages(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> Iterator[NodeCounts]:
    """Yield the intermediate placements to `after`, with the fewest replacements, a few at a time.

    Args:
        before: Instances by node and runtime.
        after: Instances by node and runtime to change to.
    """
    counts = [list(row) for row in before]
    for batch in replacement_batches(replacement_plan(before, after), batch_size(sum(map(sum, before)))):
        for change in batch:
            if change.source is not None:
                counts[change.node][change.source] -= 1
            if change.target is not None:
                counts[change.node][change.target] += 1
        yield tuple(map(tuple, counts))
