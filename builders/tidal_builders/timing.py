"""Latency of many alternatives on a machine that is never quite quiet."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Key = TypeVar("Key", bound=Hashable)
# Runs one call on the worker of this number.
Call = Callable[[int], object]
Progress = Callable[[float], None]

_BLOCK_S = 0.01
_MOST_CALLS = 20
_LONG_S = 0.2


@dataclass(frozen=True, slots=True)
class Timing:
    """Latency of one call in milliseconds: the median of the least disturbed block, and 95 % of all calls' bound.

    Other work on the machine comes and goes; what it adds to one alternative's blocks and not to another's would
    decide comparisons if the median were over all of them.
    """

    median_ms: float
    p95_ms: float
    calls: int


def measure(
    calls: Mapping[Key, Call],
    *,
    contexts: Mapping[Key, int] | None = None,
    rounds: int = 5,
    budget_s: float = 60.0,
    pause_s: float = 0.005,
    progress: Progress = lambda _: None,
) -> dict[Key, Timing]:
    """Time every call in blocks, round after round in changing order, so that a disturbance meets all alike.

    A block is one call that is not counted and then about 10 ms of calls (at least one, at most 20); from the second
    round on a call of 0.2 s or more is a block by itself, because what one call warms up is little beside it. All
    workers of a call run the block at the same time, as they would when the server is busy. Between blocks the
    process sleeps: threads of an engine spin for a while after a call and would slow the next engine down.

    Args:
        calls: what to time, by any key.
        contexts: how many workers run a call at the same time; one where this is None.
        rounds: rounds at most.
        budget_s: no round beyond the second begins after so many seconds.
        pause_s: sleep between blocks.
        progress: told the share that is done.
    """
    samples: dict[Key, list[list[float]]] = {key: [] for key in calls}
    order = list(calls)
    shuffle = random.Random(0).shuffle
    start = time.monotonic()
    workers = dict.fromkeys(calls, 1) if contexts is None else contexts
    with ThreadPoolExecutor(max(workers.values())) as pool:
        for turn in range(rounds):
            if turn >= 2 and time.monotonic() - start > budget_s:
                break
            shuffle(order)
            for done, key in enumerate(order):
                block = (calls[key] for _ in range(workers[key]))
                times = pool.map(_time_block, block, range(workers[key]), itertools.repeat(turn))
                samples[key].append([each for worker in times for each in worker])
                progress((turn + done / len(order)) / rounds)
                time.sleep(pause_s)
    progress(1.0)
    return {
        key: Timing(
            min(float(np.median(block)) for block in blocks),
            float(np.percentile(np.concatenate(blocks), 95)),
            sum(map(len, blocks)),
        )
        for key, blocks in samples.items()
    }


def _time_block(call: Call, worker: int, turn: int) -> list[float]:
    begin = time.perf_counter()
    call(worker)
    first = time.perf_counter() - begin
    if turn > 0 and first >= _LONG_S:
        return [first * 1e3]
    times = []
    for _ in range(max(1, min(_MOST_CALLS, int(_BLOCK_S / first)))):
        begin = time.perf_counter()
        call(worker)
        times.append((time.perf_counter() - begin) * 1e3)
    return times
