"""Exact optimum of a few queries: the highest earnings over all orders, batches and γ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def most_earned(deadlines: Sequence[float], earnings: Floats, seconds: Floats) -> float:
    """Return the highest sum of earnings of queries that are available at 0 s and run in consecutive batches.

    Exact dynamic programme over the set of executed queries; of the schedules of a set, those not dominated in both end
    and earnings are kept. A schedule ends with a batch, which is a subset of the set at some γ. A query that would be
    late in its batch is left out, which does not slow down the batch.

    Args:
        deadlines: Deadline of each query in seconds; time is exponential in the number of queries.
        earnings: Earnings of each query in time by γ, of shape [queries, gammas].
        seconds: Seconds of a batch by γ and size, ascending in size, of shape [gammas, queries + 1].
    """
    number = len(deadlines)
    sets = range(1 << number)
    members = [[i for i in range(number) if each >> i & 1] for each in sets]
    due = [min((deadlines[i] for i in each), default=0.0) for each in members]
    values = [earnings[each].sum(axis=0) for each in members]
    takes = [seconds[:, len(each)] for each in members]
    fronts: list[tuple[Floats, Floats]] = [(np.zeros(1), np.zeros(1))]
    best = 0.0
    for done in sets[1:]:
        times, sums = [], []
        last = done
        while last:
            before_times, before_sums = fronts[done ^ last]
            ends = before_times[:, None] + takes[last]
            in_time = ends <= due[last]
            if in_time.any():
                times.append(ends[in_time])
                sums.append((before_sums[:, None] + values[last])[in_time])
            last = (last - 1) & done
        front = _front(np.concatenate(times), np.concatenate(sums)) if times else (np.zeros(0), np.zeros(0))
        fronts.append(front)
        best = max(best, float(front[1].max(initial=0.0)))
    return best


def most_allocated(deadlines: Sequence[float], earnings: Floats, seconds: Floats) -> float:
    """Return the highest sum of earnings of given batches that are available at 0 s (problem (1)).

    Exact: batches that can all be in time are in time in the order of their deadlines.

    Args:
        deadlines: Deadline of each batch, ascending, in seconds.
        earnings: Earnings by batch and γ, of shape [batches, gammas].
        seconds: Seconds by batch and γ, of shape [batches, gammas].
    """
    times, sums = np.zeros(1), np.zeros(1)
    for deadline, earned, takes in zip(deadlines, earnings, seconds, strict=True):
        ends = times[:, None] + takes
        in_time = ends <= deadline
        with_it = (sums[:, None] + earned)[in_time]
        times, sums = _front(np.concatenate((times, ends[in_time])), np.concatenate((sums, with_it)))
    return float(sums[-1])


def _front(times: Floats, sums: Floats) -> tuple[Floats, Floats]:
    order = np.lexsort((-sums, times))
    times, sums = times[order], sums[order]
    kept = np.concatenate(([True], sums[1:] > np.maximum.accumulate(sums)[:-1]))
    return times[kept], sums[kept]
