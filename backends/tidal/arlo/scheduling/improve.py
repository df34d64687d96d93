"""A heuristic allocation, the upper bound of the exact search."""

from __future__ import annotations

import numpy as np

from tidal.arlo.scheduling.problem import AllocationProblem, Ints

_MAX_ROUNDS = 200


def improve(problem: AllocationProblem, instances: Ints) -> Ints:
    """Distribute the remaining instances, then move single ones between runtimes while the cost falls.

    Args:
        problem: Allocation problem.
        instances: Instances by runtime, each at least `problem.least`, at most `problem.gpus` in total, [runtimes].

    Returns:
        Instances by runtime, `problem.gpus` in total; not necessarily optimal.
    """
    runtimes = len(instances)
    one = np.eye(runtimes, dtype=np.int64)
    left = problem.gpus - int(instances.sum())
    while left:
        portion = max(1, left // 4)
        candidates = instances + portion * one
        instances = candidates[int(problem.costs(candidates).argmin())]
        left -= portion
    moves = (one[None, :, :] - one[:, None, :]).reshape(-1, runtimes)  # from the first axis to the second
    cost = problem.costs(instances[None])[0]
    for _ in range(_MAX_ROUNDS):
        candidates = instances + moves
        candidates = candidates[(candidates >= problem.least).all(axis=1)]
        costs = problem.costs(candidates)
        best = int(costs.argmin())
        if not costs[best] < cost:
            break
        instances, cost = candidates[best], costs[best]
    return instances
