"""Lower bounds on the cost of the remaining runtimes, from a price per instance (Lagrangian relaxation of Eq. 2).

Only Eq. 2 and the overflow R_i couple the runtimes. With a price per instance instead of a limit on their number, the
minimum cost of the remaining runtimes depends on the overflow alone, and backward recursion computes it. A larger
overflow never costs less, because latencies do not fall as loads grow: rounding overflows down to a few grid points
keeps the result a lower bound, which is exact without overflow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidal.arlo.scheduling.latency import Floats
from tidal.arlo.scheduling.problem import AllocationProblem, Ints

_GRID = 48
_MAX_PRICES = 40


@dataclass(frozen=True)
class LagrangianBound:
    """The bound at one price.

    Attributes:
        price: Cost per instance beyond the minimum of Eq. 3, in seconds.
        to_go: Minimum priced cost of runtimes i, i+1, … by grid point of R_{i-1}; one array per runtime, and [0.0]
            after the last.
        grids: Overflows R_{i-1} in requests, ascending from 0, in the same layout.
        extras: Instances beyond the minimum in the solution at this price, [runtimes].
    """

    price: float
    to_go: list[Floats]
    grids: list[Floats]
    extras: Ints

    def after(self, i: int, left: Floats) -> Floats:
        """Return the minimum priced cost of runtimes `i` and longer for an overflow of `left` requests, in seconds."""
        if len(self.grids[i]) == 1:
            return np.broadcast_to(self.to_go[i], left.shape)
        bound: Floats = self.to_go[i][np.searchsorted(self.grids[i], left, side="right") - 1]
        return bound


class Relaxation:
    """The relaxed problem; precomputes everything that does not depend on the price.

    Args:
        problem: Problem with Σ least <= gpus.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        self._slack = problem.gpus - int(problem.least.sum())
        self._extras = np.arange(self._slack + 1)
        self._grids = _grids(problem)
        self._costs: list[Floats] = []  # by runtime, [grid point, extra]
        self._next: list[Ints] = []  # grid point of the overflow, for the numbers of extras that overflow
        for i, grid in enumerate(self._grids[:-1]):
            cost, left = problem.step(i, grid[:, None], (problem.least[i] + self._extras)[None, :])
            columns = int(np.count_nonzero(left.any(axis=0)))
            self._costs.append(cost)
            self._next.append(np.searchsorted(self._grids[i + 1], left[:, :columns], side="right") - 1)

    def best(self) -> tuple[LagrangianBound, list[Ints]]:
        """Return the highest bound over all prices, and the feasible extras that the search found.

        The bound is concave and piecewise linear in the price, with the number of instances beyond the slack as slope.
        The next price to try is where the two lines at the ends of an interval intersect.
        """
        low = self._at(0.0)
        fitting: list[Ints] = []
        if low.extras.sum() <= self._slack:
            return low, [low.extras]
        high = self._at(self._highest_price())
        fitting.append(high.extras)
        best = max(low, high, key=self._value)
        for _ in range(_MAX_PRICES):
            rise, fall = int(low.extras.sum()) - self._slack, self._slack - int(high.extras.sum())
            meet = (self._value(high) - self._value(low) + rise * low.price + fall * high.price) / (rise + fall)
            if not low.price < meet < high.price:
                break
            bound = self._at(meet)
            found, expected = self._value(bound), self._value(low) + rise * (meet - low.price)
            if found > self._value(best):
                best = bound
            used = int(bound.extras.sum())
            if used <= self._slack:
                high = bound
                fitting.append(bound.extras)
            else:
                low = bound
            if used == self._slack or found >= expected - 1e-12 * abs(expected):
                break
        return best, fitting

    def _value(self, bound: LagrangianBound) -> float:
        return float(bound.to_go[0][0]) - bound.price * self._slack

    def _highest_price(self) -> float:
        """Return a price that exceeds the savings of any additional instance."""
        return 1.0 + sum(float(costs.max()) for costs in self._costs)

    def _at(self, price: float) -> LagrangianBound:
        charge = price * self._extras
        to_go: list[Floats] = [np.zeros(1)]
        choices: list[Ints] = []
        for costs, following in zip(reversed(self._costs), reversed(self._next), strict=True):
            total = costs + charge
            total += to_go[0][0]
            total[:, : following.shape[1]] += to_go[0][following] - to_go[0][0]
            choice = total.argmin(axis=1)
            to_go.insert(0, total[np.arange(len(total)), choice])
            choices.insert(0, choice)
        extras, point = [], 0
        for choice, following in zip(choices, self._next, strict=True):
            extra = int(choice[point])
            extras.append(extra)
            point = int(following[point, extra]) if extra < following.shape[1] else 0
        return LagrangianBound(price, to_go, self._grids, np.asarray(extras))


def _grids(problem: AllocationProblem) -> list[Floats]:
    """Return grid points of the overflow R_{i-1} by runtime.

    They are 0, sums of consecutive remainders (the overflow of runtimes without extra instances), and evenly spaced
    points up to the maximum.
    """
    remainders = problem.requests - problem.least * problem.capacities
    grids = [np.zeros(1)]
    runs: Floats = np.zeros(1)
    for i in range(len(remainders) - 1):
        runs = np.maximum(np.append(runs, 0.0) + remainders[i], 0.0)
        grids.append(np.unique(np.concatenate([[0.0], runs, np.linspace(0.0, runs.max(), _GRID)])))
    return [*grids, np.zeros(1)]
