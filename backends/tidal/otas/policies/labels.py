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


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """Ways to deal with the first groups, by time ascending and so by earnings; an array has an entry a label.

    `before` is the place among the labels from which a way came, `action` what it did since: which of `runs`, or -1
    for not executing the last group.
    """

    times: FloatArray
    earned: FloatArray
    before: IntArray
    action: IntArray
    runs: Sequence[Run]


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
    in that order. So a way through the groups is known by its end and its earnings, and of two ways the one that ends
    later and earns no more is dropped. With labels and joined groups without bound, the plan is the best of all whose
    batches are whole groups that follow one another; with a bound, of the ways that remain, those are kept that lie
    evenly between the quickest and the one that earns most. Any bound gives a plan that is in time.

    Args:
        now: seconds.
        deadlines: by group, ascending.
        sizes: queries, by group.
        earnings: [groups, gammas].
        costs: of batches.
        price: utility that a second of the engine is worth elsewhere, 0 or more.
        labels: kept after every group, at most.
        joined: consecutive groups that may share a batch, at most.
    """
    zero = np.zeros(1, np.intp)
    found = [_Labels(np.array([now]), np.zeros(1), zero, zero - 1, ())]
    for last in range(len(sizes)):
        found.append(_extended(found, last, deadlines, sizes, earnings, costs, price, labels, joined))
    plan: list[Run] = []
    at, label = len(sizes), int(np.argmax(found[-1].earned))
    while at:
        here = found[at]
        action = int(here.action[label])
        label = int(here.before[label])
        if action < 0:
            at -= 1
        else:
            plan.append(here.runs[action])
            at = here.runs[action].start
    return plan[::-1]


def _extended(
    found: Sequence[_Labels],
    last: int,
    deadlines: Sequence[float],
    sizes: Sequence[int],
    earnings: FloatArray,
    costs: Costs,
    price: float,
    labels: int,
    joined: int,
) -> _Labels:
    """The ways to deal with the groups up to and including `last`."""
    before = found[last]
    times, earned = [before.times], [before.earned]
    origin, actions = [np.arange(len(before.times))], [np.full(len(before.times), -1)]
    runs: list[Run] = []
    size, gains = 0, np.zeros(len(costs.gammas))
    for start in range(last, max(last - joined, -1), -1):
        size += sizes[start]
        if size > costs.max_batch:
            break
        gains = gains + earnings[start]
        takes = costs.seconds[:, size]
        worth = gains - price * takes
        places = _worthwhile(takes, worth)
        if not places:
            continue
        since = found[start]
        ends = since.times[:, None] + takes[places]
        which, choice = np.nonzero(ends <= deadlines[start])
        times.append(ends[which, choice])
        earned.append(since.earned[which] + worth[places][choice])
        origin.append(which)
        actions.append(choice + len(runs))
        runs += [Run(start, last + 1, place) for place in places]
    return _pruned(
        np.concatenate(times), np.concatenate(earned), np.concatenate(origin), np.concatenate(actions), runs, labels
    )


def _worthwhile(takes: FloatArray, worth: FloatArray) -> list[int]:
    """Places of γ that earn more than any quicker one, and more than nothing."""
    kept, most = [], 0.0
    for _, gain, place in sorted(zip(takes.tolist(), (-worth).tolist(), range(len(worth)), strict=True)):
        if -gain > most and takes[place] < np.inf:
            kept.append(place)
            most = -gain
    return kept


def _pruned(
    times: FloatArray, earned: FloatArray, origin: IntArray, actions: IntArray, runs: Sequence[Run], labels: int
) -> _Labels:
    order = np.lexsort((-earned, times))
    most = np.maximum.accumulate(earned[order])
    better = np.empty(len(order), np.bool_)
    better[0] = True
    np.greater(most[1:], most[:-1], out=better[1:])
    kept = order[better]
    if len(kept) > labels:
        kept = kept[np.linspace(0, len(kept) - 1, labels).round().astype(np.intp)]
    return _Labels(times[kept], earned[kept], origin[kept], actions[kept], runs)
