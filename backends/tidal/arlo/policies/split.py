"""Splitting a queue into batches."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Table = Sequence[Sequence[float]]


def best_split(
    lengths: Sequence[int], table: Table, *, lanes: int, behind: int = 0, now: float = 0.0, latest: Sequence[float] = ()
) -> list[int]:
    """Sizes of the consecutive batches, in order, with the least sum of waiting.

    A batch makes everybody who still waits wait for its latency, so with one lane a split costs the sum over batches
    of (queries not answered yet) × (latency), which is minimised exactly, from the last query backwards, in
    O(len(lengths)²). A pair shares a pass only if that is nearly free; a long queue takes any gain per query. With
    several lanes those behind a batch wait for its share of a lane, its own queries for the whole of it.

    Args:
        lengths: padded lengths of the waiting queries in tokens, in the order in which they are to run.
        table: latency in seconds by [length][batch size], infinite where a batch must not be.
        lanes: engines that run at the same time.
        behind: queries that wait after these.
        now: seconds.
        latest: deadline of each query in seconds, infinite where it has none; the first batch keeps those of its
            queries, if it can.

    Returns:
        Batch sizes, which sum to `len(lengths)`.
    """
    k = len(lengths)
    least = [0.0] * (k + 1)
    sizes = [1] * k
    own = 1 - 1 / lanes
    for start in range(k - 1, -1, -1):
        best, longest, deadline = float("inf"), 0, float("inf")
        waiting = (k + behind - start) / lanes
        for end in range(start + 1, k + 1):
            longest = max(longest, lengths[end - 1])
            size = end - start
            latency = table[longest][size]
            if start == 0 and latest:
                deadline = min(deadline, latest[end - 1])
                if size > 1 and now + latency > deadline:
                    break
            cost = (waiting + size * own) * latency + least[end]
            if cost < best:
                best, sizes[start] = cost, size
        least[start] = best
    split, at = [], 0
    while at < k:
        split.append(sizes[at])
        at += sizes[at]
    return split


def sum_of_waiting(lengths: Sequence[int], split: Sequence[int], table: Table, *, lanes: int, behind: int = 0) -> float:
    """Sum over queries of the time until each is answered, in seconds, when batches go to the first free lane.

    The `behind` queries after these count as waiting until a lane is free again.
    """
    free = [0.0] * lanes
    total, at = 0.0, 0
    for size in split:
        finish = free[0] + table[max(lengths[at : at + size])][size]
        heapq.heapreplace(free, finish)
        total += size * finish
        at += size
    return total + behind * free[0]
