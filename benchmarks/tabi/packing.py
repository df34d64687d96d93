"""Packing factor: how many copies of a model run together on this machine without slowing each other (Tabi §7.1)."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidal.arlo.manifest import load_arlo_manifest
from tidal.arlo.model import TokenRow, padded_inputs
from tidal.engines import Engine, open_engines
from tidal.text.words import EncodedWords

# The paper's bound of what counts as no slowdown.
_SLOWDOWN = 1.10
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Packing:
    """Pf, and how much slower a query is by the number of copies that run."""

    factor: int
    slowdown: dict[int, float]


def measure(version_dir: Path, queries: Sequence[EncodedWords], *, seconds: float) -> Packing:
    """Run 1, 2, ... copies at once, up to one more than there are cores, each as the server runs one query.

    Args:
        version_dir: of a level.
        queries: that each copy runs, in turn.
        seconds: that each number of copies runs for, in each of three rounds.
    """
    manifest = load_arlo_manifest(version_dir)
    runtime = len(manifest.runtimes) - 1
    artifact = manifest.artifact(manifest.runtimes[runtime], version_dir)
    most = len(os.sched_getaffinity(0)) + 1
    copies = [open_engines(artifact, threads=manifest.profile.threads)[0] for _ in range(most)]
    rows = [TokenRow(each.ids, np.ones(len(each.ids), np.int64), each.type_ids) for each in queries]
    inputs = [padded_inputs(manifest, runtime, [row]) for row in rows]
    for copy in copies:
        for each in inputs:
            copy.run(each)  # what it makes for new shapes is made once
    times: dict[int, list[float]] = {count: [] for count in range(1, most + 1)}
    for _ in range(_ROUNDS):
        for count, found in times.items():
            found.append(_together(copies[:count], inputs, seconds))
    alone = statistics.median(times[1])
    return packing({count: statistics.median(found) / alone for count, found in times.items()})


def packing(slowdown: dict[int, float]) -> Packing:
    """The largest number of copies up to which none slows the others by more than the bound."""
    factor = 1
    while slowdown.get(factor + 1, float("inf")) < _SLOWDOWN:
        factor += 1
    return Packing(factor, slowdown)


def _together(copies: Sequence[Engine], inputs: Sequence[dict[str, np.ndarray]], seconds: float) -> float:
    """Mean seconds of a query while all copies run."""
    spent, done = [0.0] * len(copies), [0] * len(copies)
    ready = threading.Barrier(len(copies))

    def work(place: int) -> None:
        copies[place].run(inputs[0])
        ready.wait()
        start = now = time.perf_counter()
        while now - start < seconds:
            copies[place].run(inputs[done[place] % len(inputs)])
            done[place] += 1
            now = time.perf_counter()
        spent[place] = now - start

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(copies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(spent) / sum(done)
