"""Plan waiting groups by labels of time and earnings, with dominance pruning and a bounded number of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidal.otas.policies.costs import Costs, FloatArray

IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Run:
    """A batch of a plan.

    Attributes:
        start: Index of its first group.
        stop: Index after its last group.
        gamma_index: Index of its γ.
    """

    start: int
    stop: int
    gamma_index: int


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
    """Return the plan with the highest earnings: which groups run, which share a batch, and their γ.

    Available batches can run in the order of their deadlines without loss: if all can be in time, they are in time in
    that order. A partial plan of the first groups is described by its label, its end and its earnings; a label that
    ends later than another without earning more is dominated and dropped. Without limits on labels and joined groups,
    the plan is optimal among those whose batches are consecutive whole groups. With a limit, labels are kept evenly
    between the earliest end and the highest earnings. The plan is in time for any limits.

    Args:
        now: Current time, in seconds.
        deadlines: Deadline of each group, ascending, in seconds.
        sizes: Number of queries of each group.
        earnings: Expected utility of each group by γ, of shape [groups, gammas].
        costs: Costs of batches.
        price: Utility that a second of the engine would earn otherwise, 0 or more.
        labels: Maximum number of labels after each group, at least 2.
        joined: Maximum number of consecutive groups in one batch.

    Returns:
        Batches in their order; groups in none of them are not executed.
    """
    groups = len(sizes)
    choices = _choices(now, np.asarray(deadlines), sizes, earnings, costs, price, joined)
    # Labels after each number of groups, by ascending time and therefore earnings; unused ones have infinite time.
    times = np.full((groups + 1, labels), np.inf)
    earned = np.full((groups + 1, labels), -np.inf)
    times[0, 0], earned[0, 0] = now, 0.0
    sources: list[IntArray] = []
    ranks = np.arange(labels)
    for stop in range(1, groups + 1):
        first, last = choices.bounds[stop - 1 : stop + 1]
        if last - first == 1:  # the only choice is not to execute the group
            times[stop], earned[stop] = times[stop - 1], earned[stop - 1]
            sources.append(ranks)
            continue
        starts = choices.starts[first:last]
        ends = times.take(starts, 0) + choices.takes[first:last]
        sums = earned.take(starts, 0) + choices.value[first:last]
        sums[ends > choices.deadlines[first:last]] = -np.inf
        ends, sums = ends.ravel(), sums.ravel()
        order = ends.argsort(kind="stable")
        ascending = sums.take(order)
        better = np.empty(len(order), np.bool_)
        better[0] = True
        np.greater(ascending[1:], np.maximum.accumulate(ascending)[:-1], out=better[1:])
        kept = order[better]
        if len(kept) > labels:
            kept = kept[ranks * (len(kept) - 1) // (labels - 1)]
        times[stop, : len(kept)] = ends.take(kept)
        earned[stop, : len(kept)] = sums.take(kept)
        sources.append(kept)
    return _runs_to(choices, sources, int(earned[groups].argmax()), labels)


@dataclass(frozen=True, slots=True, eq=False)
class _Choices:
    """Choices for the groups up to each `stop`: not to execute the last one, or a batch that ends there.

    The choices of a stop have the indices `bounds[stop - 1]` to `bounds[stop]`; the first one is not to execute.

    Attributes:
        bounds: Index of the first choice of each stop.
        starts: First group of each choice.
        gamma_indices: Index of γ of each choice; -1 for not executing.
        takes: Seconds of each choice; this and the following have a second axis of size 1, for labels.
        value: Earnings of each choice minus the price of its time.
        deadlines: Deadline of each choice, in seconds.
    """

    bounds: list[int]
    starts: IntArray
    gamma_indices: IntArray
    takes: FloatArray
    value: FloatArray
    deadlines: FloatArray


def _choices(
    now: float, due: FloatArray, sizes: Sequence[int], earnings: FloatArray, costs: Costs, price: float, joined: int
) -> _Choices:
    """Collect batches whose γ has a positive value above that of every faster γ."""
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
    value = np.where(possible, sums[stops] - sums[starts] - price * np.where(possible, takes, 0.0), 0.0)
    quickest_first = np.argsort(takes, axis=1, kind="stable")
    rows = np.arange(len(starts))[:, None]
    ordered = value[rows, quickest_first]
    most = np.maximum.accumulate(np.concatenate((np.zeros((len(starts), 1)), ordered[:, :-1]), axis=1), axis=1)
    run, rank = np.nonzero(ordered > most)
    gamma_index = quickest_first[run, rank]
    of_stop = np.concatenate((np.arange(1, groups + 1), stops[run]))
    order = np.argsort(of_stop, kind="stable")
    nothing = np.zeros(groups)
    return _Choices(
        bounds=np.searchsorted(of_stop[order], np.arange(1, groups + 2)).tolist(),
        starts=np.concatenate((np.arange(groups), starts[run]))[order],
        gamma_indices=np.concatenate((np.full(groups, -1), gamma_index))[order],
        takes=np.concatenate((nothing, takes[run, gamma_index]))[order, None],
        value=np.concatenate((nothing, value[run, gamma_index]))[order, None],
        deadlines=np.concatenate((nothing + np.inf, due[starts[run]]))[order, None],
    )


def _runs_to(choices: _Choices, sources: Sequence[IntArray], label: int, labels: int) -> list[Run]:
    """Return the batches on the path to a label after all groups, in their order."""
    runs: list[Run] = []
    stop = len(sources)
    while stop:
        choice, label = divmod(int(sources[stop - 1][label]), labels)
        choice += choices.bounds[stop - 1]
        start, gamma_index = int(choices.starts[choice]), int(choices.gamma_indices[choice])
        if gamma_index >= 0:
            runs.append(Run(start, stop, gamma_index))
        stop = start
    return runs[::-1]
