"""The best plan for waiting groups: labels of time and earnings, pruned by dominance, bounded in number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidal.otas.policies.costs import Costs, FloatArray

IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Run:
    """A batch of a plan: the groups from `start` up to `stop`, at the place of their γ."""

    start: int
    stop: int
    place: int


def best_plan(
    now: float,
    deadlines: Sequence[float],
    sizes: Sequence[int],
    earnings: FloatArray,
    costs: Costs,
    *,
    price: float = 0.0,
    labels: int = 32,
    joined: int = 1,
) -> list[Run]:
    """Which groups run, which of them in one batch, at which γ; what no run holds is not executed.

    Batches that are all there run in the order of their deadlines without loss: if they can all be in time, they are
    in that order. So a way through the first groups is known by its label, when it ends and what it earns, and of two
    ways the one that ends later and earns no more is dropped. With labels and joined groups without bound, the plan is
    the best of all whose batches are whole groups that follow one another; with a bound, those labels are kept that
    lie evenly between the quickest and the one that earns most. Any bound gives a plan that is in time.

    Args:
        now: seconds.
        deadlines: by group, ascending.
        sizes: queries, by group.
        earnings: [groups, gammas].
        costs: of batches.
        price: utility that a second of the engine is worth elsewhere, 0 or more.
        labels: kept after every group, at least 2.
        joined: consecutive groups that may share a batch, at most.
    """
    groups = len(sizes)
    choices = _choices(now, np.asarray(deadlines), sizes, earnings, costs, price, joined)
    # Labels after so many groups, by time and so by earnings ascending; where there are fewer, none ends.
    times = np.full((groups + 1, labels), np.inf)
    earned = np.full((groups + 1, labels), -np.inf)
    times[0, 0], earned[0, 0] = now, 0.0
    came_from: list[IntArray] = []
    spread = np.arange(labels)
    for stop in range(1, groups + 1):
        first, last = choices.bounds[stop - 1 : stop + 1]
        if last - first == 1:  # nothing but leaving the group out
            times[stop], earned[stop] = times[stop - 1], earned[stop - 1]
            came_from.append(spread)
            continue
        starts = choices.starts[first:last]
        ends = times.take(starts, 0) + choices.takes[first:last]
        sums = earned.take(starts, 0) + choices.worth[first:last]
        sums[ends > choices.deadlines[first:last]] = -np.inf
        ends, sums = ends.ravel(), sums.ravel()
        order = ends.argsort(kind="stable")
        ascending = sums.take(order)
        better = np.empty(len(order), np.bool_)
        better[0] = True
        np.greater(ascending[1:], np.maximum.accumulate(ascending)[:-1], out=better[1:])
        kept = order[better]
        if len(kept) > labels:
            kept = kept[spread * (len(kept) - 1) // (labels - 1)]
        times[stop, : len(kept)] = ends.take(kept)
        earned[stop, : len(kept)] = sums.take(kept)
        came_from.append(kept)
    return _followed(choices, came_from, int(earned[groups].argmax()), labels)


@dataclass(frozen=True, slots=True, eq=False)
class _Choices:
    """What can be done with the groups up to a `stop`: not to execute the last one, or a run that ends there.

    The choices of a stop lie from `bounds[stop - 1]` to `bounds[stop]`, the first of them not to execute.
    """

    bounds: list[int]
    starts: IntArray
    places: IntArray  # of γ; -1 for not executing
    takes: FloatArray  # this and those below have a second axis of 1, for labels
    worth: FloatArray
    deadlines: FloatArray


def _choices(
    now: float, due: FloatArray, sizes: Sequence[int], earnings: FloatArray, costs: Costs, price: float, joined: int
) -> _Choices:
    """Runs whose γ earns more than any quicker one, and more than nothing."""
    groups = len(sizes)
    starts, stops = np.nonzero(np.tri(groups, dtype=np.bool_).T & ~np.tri(groups, k=-joined, dtype=np.bool_).T)
    stops = stops + 1
    before = np.concatenate(([0], np.cumsum(sizes)))
    size = before[stops] - before[starts]
    fits = size <= costs.max_batch
    starts, stops, size = starts[fits], stops[fits], size[fits]
    sums = np.concatenate((np.zeros((1, earnings.shape[1])), np.cumsum(earnings, axis=0)))
    takes = costs.seconds[:, size].T
    possible = takes <= (due[starts] - now)[:, None]
    worth = np.where(possible, sums[stops] - sums[starts] - price * np.where(possible, takes, 0.0), 0.0)
    quickest_first = np.argsort(takes, axis=1, kind="stable")
    rows = np.arange(len(starts))[:, None]
    ordered = worth[rows, quickest_first]
    most = np.maximum.accumulate(np.concatenate((np.zeros((len(starts), 1)), ordered[:, :-1]), axis=1), axis=1)
    run, rank = np.nonzero(ordered > most)
    place = quickest_first[run, rank]
    of_stop = np.concatenate((np.arange(1, groups + 1), stops[run]))
    order = np.argsort(of_stop, kind="stable")
    nothing = np.zeros(groups)
    return _Choices(
        bounds=np.searchsorted(of_stop[order], np.arange(1, groups + 2)).tolist(),
        starts=np.concatenate((np.arange(groups), starts[run]))[order],
        places=np.concatenate((np.full(groups, -1), place))[order],
        takes=np.concatenate((nothing, takes[run, place]))[order, None],
        worth=np.concatenate((nothing, worth[run, place]))[order, None],
        deadlines=np.concatenate((nothing + np.inf, due[starts[run]]))[order, None],
    )


def _followed(choices: _Choices, came_from: Sequence[IntArray], label: int, labels: int) -> list[Run]:
    """The runs that led to a label after all groups, in their order."""
    runs: list[Run] = []
    stop = len(came_from)
    while stop:
        choice, label = divmod(int(came_from[stop - 1][label]), labels)
        choice += choices.bounds[stop - 1]
        start, place = int(choices.starts[choice]), int(choices.places[choice])
        if place >= 0:
            runs.append(Run(start, stop, place))
        stop = start
    return runs[::-1]
