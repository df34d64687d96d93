"""The most that a handful of queries can earn, whatever shares a batch and runs when: every way, but no way twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def most_earned(deadlines: Sequence[float], earnings: Floats, seconds: Floats) -> float:
    """The best sum of earnings of queries that are all there at 0 s and run in batches, one after the other.

    Exact. What has run is a set; of the ways to run a set, those are kept that no other one beats by both time and
    earnings. A way ends with a batch: each of the set's subsets at each γ. A query that would be late in its batch is
    left out of it, which makes the batch no slower.

    Args:
        deadlines: by query, seconds; few queries, as the time is exponential in their number.
        earnings: [queries, gammas] of each in time.
        seconds: [gammas, queries + 1] of a batch by its size, ascending in it.
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
    """The best sum of earnings of batches that stay whole (problem (1)), all there at 0 s.

    Exact: batches that can all be in time are in the order of their deadlines.

    Args:
        deadlines: by batch, ascending, seconds.
        earnings: [batches, gammas].
        seconds: [batches, gammas].
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
