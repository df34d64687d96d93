"""The dynamic program of every batching function: splits a sequence into consecutive groups of the least total cost."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidal.pets.profile import FloatTable, IntArray


def best_split(costs: FloatTable) -> IntArray:
    """Find the cheapest split exactly, by the Bellman equation of Eq. 4 and 5.

    state[i], the least cost of the first i items, is the minimum over j ≤ i of state[j - 1] + cost(items j to i). Among
    equal splits, the one with the largest last group is chosen, and so on backwards.

    Args:
        costs: Cost of a group by its last item and its start, [items, most]: column k is the start k + 1 - most items
            before the last. Infinite for groups that are not permitted; `most` is the largest number of items per
            group.

    Returns:
        Number of items before the end of each group, ascending; the last is the number of items.
    """
    items, most = costs.shape
    # state[i] is at most - 1 + i, so that the states a group can follow are one slice, also at the beginning.
    state = np.full(most + items, np.inf)
    state[most - 1] = 0.0
    total = np.empty(most)
    size = np.empty(items, np.intp)
    for last in range(items):
        np.add(state[last : last + most], costs[last], out=total)
        start = int(total.argmin())
        state[last + most] = total[start]
        size[last] = most - start
    ends: list[int] = []
    end = items
    while end > 0:
        ends.append(end)
        end -= int(size[end - 1])
    return np.array(ends[::-1], np.intp)


def windows(values: npt.NDArray[np.intp], most: int, before: int) -> IntArray:
    """[items, most]: row i holds the `most` values up to the i-th; `before` fills in for those before the first."""
    padded = np.concatenate([np.full(most - 1, before, np.intp), values])
    return np.lib.stride_tricks.sliding_window_view(padded, most)
