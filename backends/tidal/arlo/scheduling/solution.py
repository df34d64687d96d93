"""From a demand to instances by runtime: the Runtime Scheduler's decision (Arlo §3.3)."""

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
    """An allocation and how good it is for the whole demand.

    Attributes:
        instances: by runtime (N_i), in sum the GPUs.
        cost_s: objective of Eq. 1, latency summed over the requests of one SLO period, seconds.
        mean_latency_s: the same for one request, seconds; 0 without demand.
        beyond_capacity: requests a period that not even the longest runtime finishes within the SLO.
        gpus_short: GPUs that are lacking to finish every request within the SLO.
        share: of every length's demand that the instances were chosen for; below 1 only where Eq. 3 cannot hold.
    """

    instances: tuple[int, ...]
    cost_s: float
    mean_latency_s: float
    beyond_capacity: float
    gpus_short: int
    share: float

    @property
    def shortfall(self) -> str | None:
        """One sentence on what is lacking, or None when every request can be finished within the SLO."""
        if not self.gpus_short:
            return None
        share = f"; chosen for {self.share:.0%} of every length's demand" if self.share < 1 else ""
        return (
            f"{self.gpus_short} more GPUs are needed: with {sum(self.instances)} about {self.beyond_capacity:.1f} "
            f"requests a period are not finished within the SLO{share}"
        )


def solve(problem: AllocationProblem) -> Solution:
    """The best allocation, proved optimal (Eqs. 1 to 7).

    Where the GPUs are fewer than Eqs. 3 and 7 ask for, no allocation is feasible. Serving as many requests as possible
    would then starve the long ones, which need the most GPU time each. So all lengths are cut alike: the best
    allocation is the optimal one for the largest share of every length's demand that the GPUs can finish within the
    SLO. A demand that meets Eq. 3 and still exceeds what the last runtime can take is solved as it is (Eq. 5 puts no
    limit there). In both cases the solution says what is lacking.
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
    """Fewest instances in sum that meet Eqs. 3 and 7 and finish every request within the SLO, whatever `gpus` is.

    Less overflow never needs more instances later, so the least overflow for each number of instances is enough to
    go on with; with an instance beyond the least everywhere nothing overflows at all.
    """
    most = len(problem.runtimes)
    remainders = problem.requests - problem.least * problem.capacities
    least_left = np.full(most + 1, np.inf)  # by instances beyond the least used so far
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
    """Instances by runtime to start with: the best for the demand of the past, else as even as possible.

    What an even division leaves over goes to the longest runtimes: they serve every shorter length too.

    Args:
        gpus: instances to hand out, at least 1.
        runtimes: profiles, ascending by `max_length`.
        history: requests in one SLO period by runtime (Q_i), as it was before; None or all zero: unknown.
    """
    if history is not None and any(history):
        return solve(AllocationProblem(gpus, tuple(runtimes), tuple(history))).instances
    if gpus < 1 or not runtimes:
        raise InvalidArgument(f"gpus and runtimes must be at least 1, got {gpus} and {len(runtimes)}")
    each, over = divmod(gpus, len(runtimes))
    return tuple(each + (i >= len(runtimes) - over) for i in range(len(runtimes)))


def _servable_share(problem: AllocationProblem) -> float:
    """Largest share of every length's demand that `gpus` instances can finish within the SLO, to 2^-30."""
    low, high = 0.0, 1.0
    for _ in range(_SHARE_STEPS):
        middle = (low + high) / 2
        if min_gpus(problem.scaled(middle)) <= problem.gpus:
            low = middle
        else:
            high = middle
    return low
