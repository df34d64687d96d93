"""Lower bounds on what the runtimes from one on still cost, from a price on instances (Lagrangian relaxation of Eq. 2).

Only Eq. 2 and the overflow R_i tie the runtimes together. With a price for every instance instead of a given number
of them, the cheapest way to go on depends on the overflow alone, and a chain of small minimisations finds it. A
larger overflow never costs less, because latencies never fall as loads grow: so overflows are rounded down to a few
grid points and the result is still a lower bound, exact where nothing overflows.
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
        price: cost of an instance beyond the least of Eq. 3, seconds.
        to_go: least priced cost of runtimes i, i+1, … by grid point of R_{i-1}; one array a runtime, and one more,
            [0.0], after the last.
        grids: overflows R_{i-1} in requests, ascending from 0, in the same layout.
        extras: instances beyond the least by runtime of the cheapest way at this price; shape [runtimes].
    """

    price: float
    to_go: list[Floats]
    grids: list[Floats]
    extras: Ints

    def after(self, i: int, left: Floats) -> Floats:
        """Least priced cost of runtimes `i` and longer when `left` requests overflow to them, seconds."""
        if len(self.grids[i]) == 1:
            return np.broadcast_to(self.to_go[i], left.shape)
        bound: Floats = self.to_go[i][np.searchsorted(self.grids[i], left, side="right") - 1]
        return bound


class Relaxation:
    """The relaxed problem, with everything that does not depend on the price computed once.

    Args:
        problem: the problem, with Σ least <= gpus.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        self._slack = problem.gpus - int(problem.least.sum())
        self._extras = np.arange(self._slack + 1)
        self._grids = _grids(problem)
        self._costs: list[Floats] = []  # by runtime, [grid point, extra]
        self._next: list[Ints] = []  # the overflow's grid point, for the first extras: with more nothing overflows
        for i, grid in enumerate(self._grids[:-1]):
            cost, left = problem.step(i, grid[:, None], (problem.least[i] + self._extras)[None, :])
            columns = int(np.count_nonzero(left.any(axis=0)))
            self._costs.append(cost)
            self._next.append(np.searchsorted(self._grids[i + 1], left[:, :columns], side="right") - 1)

    def best(self) -> tuple[LagrangianBound, list[Ints]]:
        """The price that gives the highest bound, and the extras that its search met and that fit into the slack.

        The bound is concave and piecewise linear in the price, its slope is the number of instances used beyond the
        slack: where the two lines known at the ends of an interval meet is the next price to try.
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
        """A price at which one instance more is never worth it: all that there is to save."""
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
    """Overflows R_{i-1} to bound at, by runtime: 0, sums of neighbouring remainders (what runs of runtimes without an
    extra instance hand on), and evenly spaced ones up to the largest possible."""
    remainders = problem.requests - problem.least * problem.capacities
    grids = [np.zeros(1)]
    runs: Floats = np.zeros(1)
    for i in range(len(remainders) - 1):
        runs = np.maximum(np.append(runs, 0.0) + remainders[i], 0.0)
        grids.append(np.unique(np.concatenate([[0.0], runs, np.linspace(0.0, runs.max(), _GRID)])))
    return [*grids, np.zeros(1)]
