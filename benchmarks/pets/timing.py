"""Times alternatives alternately in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

# Threads of an engine spin for a while after a call, which slows the next engine down.
_PAUSE_S = 0.03


def medians(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Return the median duration of each call in ms; an uncounted call precedes each counted one."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, taken in zip(calls, times, strict=True):
            call()
            begin = time.perf_counter()
            call()
            taken.append((time.perf_counter() - begin) * 1e3)
            time.sleep(_PAUSE_S)
    return [statistics.median(each) for each in times]
