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
from tidal.arlo.model import padded_inputs
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.engine_model.model import Array
from tidal.engines import Engine, open_engines
from tidal.text.words import EncodedWords

# Slowdown below which copies count as undisturbed, as in the paper.
_SLOWDOWN = 1.10
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class PackingFactor:
    """The packing factor Pf, and the slowdown of a query by the number of running copies."""

    factor: int
    slowdown: dict[int, float]


def measure(version_dir: Path, queries: Sequence[EncodedWords], *, seconds: float) -> PackingFactor:
    """Run 1, 2, ... concurrent copies, up to the number of cores plus 1, each as the server runs one query.

    Args:
        version_dir: Folder of a level's version.
        queries: Queries that each copy runs repeatedly.
        seconds: Duration for each number of copies, in each of three rounds.
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
            copy.run(each)  # engines prepare each new shape once
    times: dict[int, list[float]] = {count: [] for count in range(1, most + 1)}
    for _ in range(_ROUNDS):
        for count, found in times.items():
            found.append(_together(copies[:count], inputs, seconds))
    alone = statistics.median(times[1])
    return packing({count: statistics.median(found) / alone for count, found in times.items()})


def packing(slowdown: dict[int, float]) -> PackingFactor:
    """Return the largest number of copies up to which the slowdown stays below the bound.

    Args:
        slowdown: Slowdown by number of copies.
    """
    factor = 1
    while slowdown.get(factor + 1, float("inf")) < _SLOWDOWN:
        factor += 1
    return PackingFactor(factor, slowdown)


def _together(copies: Sequence[Engine], inputs: Sequence[dict[str, Array]], seconds: float) -> float:
    """Return the mean seconds of a query while all copies run."""
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
