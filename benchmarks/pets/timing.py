"""Milliseconds of alternatives in one process, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

# Threads of an engine spin for a while after a call, and would slow the next engine down.
_PAUSE_S = 0.03


def medians(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """The median of each call's milliseconds; a call that is not counted goes before each."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, taken in zip(calls, times, strict=True):
            call()
            begin = time.perf_counter()
            call()
            taken.append((time.perf_counter() - begin) * 1e3)
            time.sleep(_PAUSE_S)
    return [statistics.median(each) for each in times]
