"""The Runtime Scheduler's periodic decision: whether to change the allocation, and in which steps (Arlo §3.3, §4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tidal.arlo.scheduling.problem import AllocationProblem
from tidal.arlo.scheduling.replacement import replacement_batches, replacement_plan
from tidal.arlo.scheduling.solution import Solution, solve

MIN_GAIN = 0.05


@dataclass(frozen=True, slots=True)
class Reallocation:
    """What is best for a demand, beside what there is.

    Attributes:
        before: instances by runtime at present.
        after: instances by runtime from now on: those of `solution`, or `before` where they gain too little.
        solution: the best allocation.
        mean_before_s: predicted mean latency of `before`, seconds; as `mean_best_s` for the share of the demand that
            the solution was chosen for.
        mean_best_s: predicted mean latency of the best allocation, seconds.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    solution: Solution
    mean_before_s: float
    mean_best_s: float

    @property
    def gain(self) -> float:
        """Share of the mean latency that the best allocation saves; 0 where it saves none."""
        return max(0.0, 1.0 - self.mean_best_s / self.mean_before_s)


def reallocate(problem: AllocationProblem, present: Sequence[int], min_gain: float = MIN_GAIN) -> Reallocation | None:
    """Decide about a change for the demand that was observed; None where there was none.

    The paper re-allocates whatever is gained. Every replacement costs an instance for a while, so here what gains
    less than `min_gain` is left alone, unless the number of GPUs is another one.

    Args:
        problem: the demand, and the GPUs to hand out.
        present: instances by runtime, at least one of the last.
        least_gain: share of the mean latency that a change has to save.
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
    """GPUs that are replaced at a time: the paper's "small batches" (§4), here a twentieth of them."""
    return max(1, gpus // 20)


def stages(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Allocations to go through, by the fewest replacements, a few at a time; the last one is `after`."""
    counts = list(before)
    for batch in replacement_batches(replacement_plan(before, after), batch_size(sum(before))):
        for change in batch:
            if change.source is not None:
                counts[change.source] -= 1
            if change.target is not None:
                counts[change.target] += 1
        yield tuple(counts)
