"""Optimal instances by runtime for a demand: the Runtime Scheduler's decision (Arlo §3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidal.arlo.scheduling.optimal import cheapest
from tidal.arlo.scheduling.problem import AllocationProblem, RuntimeProfile
from tidal.errors import InvalidArgument

_SHARE_STEPS = 30


@dataclass(frozen=True, slots=True)
class Solution:
    """An allocation and its cost for the whole demand.

    Attributes:
        instances: Instances by runtime (N_i); their sum is the number of GPUs.
        cost_s: Objective of Eq. 1: latency summed over the requests of one SLO period, in seconds.
        mean_latency_s: Mean latency of a request, in seconds; 0 without demand.
        beyond_capacity: Requests per period that no runtime finishes within the SLO.
        gpus_short: Additional GPUs required to finish every request within the SLO.
        share: Share of every length's demand that the instances are optimised for; below 1 only if Eq. 3 is infeasible.
    """

    instances: tuple[int, ...]
    cost_s: float
    mean_latency_s: float
    beyond_capacity: float
    gpus_short: int
    share: float

    @property
    def shortfall(self) -> str | None:
        """Sentence about the missing GPUs, or None if every request can be finished within the SLO."""
        if not self.gpus_short:
            return None
        share = f"; optimised for {self.share:.0%} of every length's demand" if self.share < 1 else ""
        return (
            f"{self.gpus_short} more GPUs are needed: with {sum(self.instances)}, about {self.beyond_capacity:.1f} "
            f"requests per period miss the SLO{share}"
        )


def solve(problem: AllocationProblem) -> Solution:
    """Return the provably optimal allocation (Eqs. 1 to 7).

    With fewer GPUs than Eqs. 3 and 7 require, no allocation is feasible. Maximising the number of served requests would
    starve long ones, which need the most GPU time. So the demand of all lengths is scaled down equally: the solution is
    optimal for the largest share of the demand that the GPUs finish within the SLO. A demand that meets Eq. 3 but
    exceeds the last runtime's capacity is solved unscaled (Eq. 5 has no limit). In both cases the solution states the
    missing GPUs.
    """
    feasible = int(problem.least.sum()) <= problem.gpus
    share = 1.0 if feasible else _servable_share(problem)
    instances = cheapest(problem if feasible else problem.scaled(share))
    cost = float(problem.costs(instances[None])[0])
    requests = float(problem.requests.sum())
    return Solution(
        instances=tuple(instances.tolist()),
        cost_s=cost,
        mean_latency_s=cost / requests if requests else 0.0,
        beyond_capacity=problem.overflow(instances.tolist()),
        gpus_short=max(0, min_gpus(problem) - problem.gpus),
        share=share,
    )


def min_gpus(problem: AllocationProblem) -> int:
    """Return the minimum number of instances that meets Eqs. 3 and 7 and finishes every request within the SLO.

    Less overflow never requires more instances later, so dynamic programming keeps the minimum overflow by number of
    instances; one instance beyond the minimum at every runtime leaves no overflow.
    """
    most = len(problem.runtimes)
    remainders = problem.requests - problem.least * problem.capacities
    least_left = np.full(most + 1, np.inf)  # by instances used beyond the minimum
    least_left[0] = 0.0
    for remainder, capacity in zip(remainders, problem.capacities, strict=True):
        before, least_left = least_left, np.full(most + 1, np.inf)
        for extra in range(most + 1):
            left = np.maximum(before[: most + 1 - extra] + remainder - extra * capacity, 0.0)
            least_left[extra:] = np.minimum(least_left[extra:], left)
    return int(problem.least.sum() + np.flatnonzero(least_left == 0.0)[0])


def start_allocation(
    gpus: int, runtimes: Sequence[RuntimeProfile], history: Sequence[float] | None = None
) -> tuple[int, ...]:
    """Return the initial instances by runtime: optimal for a past demand, otherwise `even_allocation`.

    Args:
        gpus: Number of instances, at least 1.
        runtimes: Profiles of the runtimes, ascending by `max_length`.
        history: Past requests per SLO period by runtime (Q_i); None or all zero: unknown.
    """
    if history is not None and any(history):
        return solve(AllocationProblem(gpus, tuple(runtimes), tuple(history))).instances
    return even_allocation(gpus, len(runtimes))


def even_allocation(gpus: int, runtimes: int) -> tuple[int, ...]:
    """Return an even distribution; the remainder goes to the longest runtimes, which serve all shorter lengths too.

    Args:
        gpus: Number of instances, at least 1.
        runtimes: Number of runtimes; with more than `gpus`, the shortest have no instance.
    """
    if gpus < 1 or runtimes < 1:
        raise InvalidArgument(f"gpus and runtimes must be at least 1, got {gpus} and {runtimes}")
    each, over = divmod(gpus, runtimes)
    return tuple(each + (i >= runtimes - over) for i in range(runtimes))


def _servable_share(problem: AllocationProblem) -> float:
    """Return the largest share of every length's demand that the GPUs finish within the SLO, to 2^-30."""
    low, high = 0.0, 1.0
    for _ in range(_SHARE_STEPS):
        middle = (low + high) / 2
        if min_gpus(problem.scaled(middle)) <= problem.gpus:
            low = middle
        else:
            high = middle
    return low
