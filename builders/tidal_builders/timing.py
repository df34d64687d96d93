"""Measures latencies of alternatives on a machine with other load."""

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
# Runs one call on the worker with this number.
Call = Callable[[int], object]
Progress = Callable[[float], None]

_BLOCK_S = 0.01
_MAX_CALLS = 20
_LONG_S = 0.2


@dataclass(frozen=True, slots=True)
class Timing:
    """Latency of one call.

    Other processes slow down some blocks and not others, which would decide comparisons if the median were taken over
    all blocks.

    Attributes:
        median_ms: Smallest median of any block, in milliseconds.
        p95_ms: 95th percentile of all calls, in milliseconds.
        calls: Number of calls that were timed.
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
    """Time calls in blocks, in rounds of changing order, so that other load on the machine affects all of them alike.

    A block is one warm-up call and then about 10 ms of timed calls (1 to 20). From the second round on, a call of
    0.2 s or more is timed without warm-up. All workers of a call run the block at the same time, as under full load.
    The process sleeps between blocks, because threads of an engine spin for a while after a call and would slow down
    the next engine.

    Args:
        calls: Calls to time, by any key.
        contexts: Number of workers that run each call at the same time, by key; None: one.
        rounds: Maximum number of rounds.
        budget_s: Time in seconds after which no further round starts; two rounds are always run.
        pause_s: Sleep between blocks in seconds.
        progress: Called with the completed share, 0 to 1.

    Returns:
        Timing of each call by its key.
    """
    samples: dict[Key, list[list[float]]] = {key: [] for key in calls}
    order = list(calls)
    shuffle = random.Random(0).shuffle
    start = time.monotonic()
    workers = dict.fromkeys(calls, 1) if contexts is None else contexts
    with ThreadPoolExecutor(max(workers.values())) as pool:
        for round_number in range(rounds):
            if round_number >= 2 and time.monotonic() - start > budget_s:
                break
            shuffle(order)
            for done, key in enumerate(order):
                block = (calls[key] for _ in range(workers[key]))
                times = pool.map(_time_block, block, range(workers[key]), itertools.repeat(round_number))
                samples[key].append([each for worker in times for each in worker])
                progress((round_number + done / len(order)) / rounds)
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


def _time_block(call: Call, worker: int, round_number: int) -> list[float]:
    begin = time.perf_counter()
    call(worker)
    first = time.perf_counter() - begin
    if round_number > 0 and first >= _LONG_S:
        return [first * 1e3]
    times = []
    for _ in range(max(1, min(_MAX_CALLS, int(_BLOCK_S / first)))):
        begin = time.perf_counter()
        call(worker)
        times.append((time.perf_counter() - begin) * 1e3)
    return times
