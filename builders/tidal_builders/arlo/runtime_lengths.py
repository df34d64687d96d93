"""Chooses the lengths of runtimes by measured latencies and the distribution of lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

#: Maximum number of runtimes: as many as Arlo uses for BERT (512 / 64, Section 3.3).
MAX_RUNTIMES = 8
# A further runtime costs memory and warm-up: it must lower the mean latency by this share, all that follow together.
_GAIN = 0.01


def optimal_lengths(
    grid: Sequence[int], latencies: Sequence[float], shares: Sequence[float], most: int = MAX_RUNTIMES
) -> list[int]:
    """Choose the lengths of runtimes that minimise the mean latency of queries that are padded to the next length.

    Exact, by dynamic programming over the grid (the partition of an ordered set into intervals). Of the numbers of
    runtimes up to `most`, the least is taken whose mean is within 1 % of the best. On a staircase of latencies (Arlo,
    Section 3.3) the ends of its steps result, since a longer input within a step costs nothing.

    Args:
        grid: Lengths in tokens, ascending; the last is the longest input.
        latencies: Latency of a runtime of each length, in any unit.
        shares: Share of the queries above each length's predecessor and up to it.
        most: Maximum number of runtimes.

    Returns:
        Ascending lengths from the grid; the last is the last of the grid.

    Raises:
        ValueError: The three have different lengths, or are empty.
    """
    if not len(grid) == len(latencies) == len(shares) or not len(grid):
        raise ValueError(
            f"expected a latency and a share for each length, got {len(grid)}, {len(latencies)} and {len(shares)}"
        )
    least, before = _partitions(np.asarray(latencies, float), np.asarray(shares, float), min(most, len(grid)))
    return _ends(grid, before, _fewest(least[:, -1]), len(grid))


def static_part(
    grid: Sequence[int],
    static: Sequence[float],
    dynamic: Sequence[float],
    shares: Sequence[float],
    most: int = MAX_RUNTIMES,
) -> list[int]:
    """Choose static lengths beside a dynamic runtime, which runs longer queries at their own length.

    Exact, like `optimal_lengths`: all ends of the static part are compared.

    Args:
        grid: Lengths in tokens, ascending; the last is the longest input.
        static: Latency of a static runtime of each length, in any unit.
        dynamic: Latency of the dynamic runtime at each length, in the same unit.
        shares: Share of the queries above each length's predecessor and up to it.
        most: Maximum number of static runtimes.

    Returns:
        Ascending lengths from the grid; none if the dynamic runtime alone is as fast, the last of the grid among them
        if it is not needed.
    """
    least, before = _partitions(np.asarray(static, float), np.asarray(shares, float), min(most, len(grid)))
    beyond = np.concatenate([np.cumsum((np.asarray(dynamic, float) * shares)[::-1])[::-1], [0.0]])
    # Without a static runtime, then with 1 to `most`: each with its best end.
    totals = least + beyond
    means = np.concatenate([beyond[:1], totals.min(axis=1)])
    count = _fewest(means)
    return _ends(grid, before, count - 1, int(totals[count - 1].argmin())) if count else []


def _fewest(means: npt.NDArray[np.float64]) -> int:
    """Index of the first mean that is within `_GAIN` of the least."""
    return int(np.argmax(means <= means.min() * (1 + _GAIN)))


def _ends(grid: Sequence[int], before: npt.NDArray[np.intp], count: int, end: int) -> list[int]:
    """The lengths of `count` + 1 runtimes that cover the first `end` grid points."""
    places = [end]
    for runtimes in range(count, 0, -1):
        places.append(int(before[runtimes][places[-1]]))
    return [int(grid[place - 1]) for place in reversed(places)]


def _partitions(
    latencies: npt.NDArray[np.float64], shares: npt.NDArray[np.float64], most: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.intp]]:
    """The least mean latency of covered queries, and the end of the interval before, both [most, points + 1].

    Entry [k, n]: k + 1 runtimes cover the first n grid points. The runtime at n costs its latency for all queries from
    the end of the interval before up to n.
    """
    below = np.concatenate([[0.0], shares.cumsum()])
    ends = np.arange(len(shares) + 1)
    cost = np.where(ends[:, None] < ends, below - below[:, None], np.inf)  # [end before, end], share of the queries
    cost[:, 1:] *= latencies
    least = [cost[0]]
    before = np.zeros((most, len(ends)), np.intp)
    for runtimes in range(1, most):
        total = least[-1][:, None] + cost
        before[runtimes] = total.argmin(axis=0)
        least.append(total.min(axis=0))
    return np.array(least), before
