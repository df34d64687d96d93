"""Exact solution of the instance allocation problem (Arlo §3.3, Eqs. 1 to 7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidal.arlo.scheduling.dual import LagrangianBound, Relaxation
from tidal.arlo.scheduling.improve import improve
from tidal.arlo.scheduling.latency import Floats
from tidal.arlo.scheduling.problem import AllocationProblem, Ints

# Relative difference below which costs count as equal; far above floating-point errors.
_TOLERANCE = 1e-9
# Maximum number of cells of a matrix of states: about 30 MB.
_MAX_CELLS = 1_000_000


@dataclass(frozen=True, slots=True)
class _States:
    """Partial allocations of the first runtimes, sorted by overflow and extras used; arrays of equal length."""

    left: Floats  # R_{i-1}, requests
    used: Ints  # instances beyond the minimum of Eq. 3
    cost: Floats  # seconds
    parent: Ints  # index among the states of the previous runtime
    extra: Ints  # of that runtime


def cheapest(problem: AllocationProblem) -> Ints:
    """Return the optimal instances by runtime (Eq. 1), [runtimes].

    Dynamic programming over the runtimes from short to long. A state is what longer runtimes depend on: the instances
    used (Eq. 2) and the overflow (R_i, Eq. 4). A state is dropped if another one with no more overflow and no more
    instances costs no more, or if its cost plus the lower bound of the rest (`Relaxation`) exceeds the cost of a known
    allocation. So the result is optimal for any latency curves that do not fall. Ties, within a relative 1e-9, go to
    the allocation with the most instances of the longest runtime, which serves every length.

    Args:
        problem: Problem with Σ `least` <= `gpus`.
    """
    least, last = problem.least, len(problem.runtimes) - 1
    slack = problem.gpus - int(least.sum())
    bound, starts = Relaxation(problem).best()
    known = min((improve(problem, least + extras) for extras in starts[-2:]), key=lambda n: problem.costs(n[None])[0])
    ceiling = (float(problem.costs(known[None])[0]) + bound.price * slack) * (1 + _TOLERANCE)
    zero = np.zeros(1, np.int64)
    levels = [_States(np.zeros(1), zero, np.zeros(1), zero, zero)]
    for i in range(last):
        levels.append(_undominated(_expand(problem, i, levels[-1], bound, slack, ceiling), slack))
    states = levels[-1]
    rest = slack - states.used
    cost, _ = problem.step(last, states.left, least[last] + rest)
    total = states.cost + cost
    near = np.flatnonzero(total <= total.min() * (1 + _TOLERANCE))
    at = int(near[rest[near].argmax()])
    instances = least.copy()
    instances[last] += rest[at]
    for i in range(last, 0, -1):
        instances[i - 1] += levels[i].extra[at]
        at = int(levels[i].parent[at])
    return instances


def _expand(
    problem: AllocationProblem, i: int, states: _States, bound: LagrangianBound, slack: int, ceiling: float
) -> _States:
    """Return all states after runtime `i` whose bound does not exceed the ceiling."""
    lefts, which = np.unique(states.left, return_inverse=True)
    extras = np.arange(slack + 1)
    cost, left = problem.step(i, lefts[:, None], (problem.least[i] + extras)[None, :])
    priced = cost + bound.price * extras + bound.after(i + 1, left)
    spent = states.cost + bound.price * states.used
    # Extras that are within the ceiling for some state of this overflow, before states are checked one by one.
    lowest = np.full(len(lefts), np.inf)
    np.minimum.at(lowest, which, spent)
    columns = np.flatnonzero((priced <= (ceiling - lowest)[:, None]).any(axis=0))
    parents, extra_columns = [], []
    portion = max(1, _MAX_CELLS // max(1, len(columns)))
    for start in range(0, len(spent), portion):
        part = slice(start, start + portion)
        fits = spent[part, None] + priced[which[part, None], columns] <= ceiling
        fits &= states.used[part, None] + columns <= slack
        row, column = np.nonzero(fits)
        parents.append(row + start)
        extra_columns.append(columns[column])
    parent, extra = np.concatenate(parents), np.concatenate(extra_columns)
    row = which[parent]
    return _States(left[row, extra], states.used[parent] + extra, states.cost[parent] + cost[row, extra], parent, extra)


def _undominated(states: _States, slack: int) -> _States:
    """Return the states that no other dominates, with no more overflow, instances and cost."""
    order = np.lexsort((states.cost, states.used, states.left))
    states = _select(states, order)
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(states.left) != 0) | (np.diff(states.used) != 0)
    states = _select(states, np.flatnonzero(first))
    lefts, row = np.unique(states.left, return_inverse=True)
    if len(lefts) * (slack + 2) > _MAX_CELLS:
        return states
    # Cell (r, u + 1): minimum cost with the r-th overflow and u instances, then with at most these.
    least = np.full((len(lefts) + 1, slack + 2), np.inf)
    least[row + 1, states.used + 1] = states.cost
    least = np.minimum.accumulate(np.minimum.accumulate(least, axis=0), axis=1)
    better = np.minimum(least[row, states.used + 1], least[row + 1, states.used])
    return _select(states, np.flatnonzero(states.cost < better))


def _select(states: _States, index: Ints) -> _States:
    return _States(
        states.left[index], states.used[index], states.cost[index], states.parent[index], states.extra[index]
    )
