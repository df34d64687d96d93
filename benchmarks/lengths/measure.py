"""Mean latency of ladders, from cells that are measured once per round for all of them."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lengths.workload import LONGEST
from tidal.arlo.manifest import ArloManifest
from tidal.engines import Engine, PlanOptions, engine_file
from tidal_builders.arlo.ladder import Ladder
from tidal_builders.arlo.length_distribution import LengthDistribution
from tidal_builders.arlo.opened import Compiled
from tidal_builders.arlo.workers import Workers
from tidal_builders.samples import synthetic

_CALLS = 5
_TOKEN = 1

#: A length, and whether it runs on the dynamic engine.
Cell = tuple[int, bool]


def ladder_of(manifest: ArloManifest) -> Ladder:
    """Return the lengths of a published model's runtimes."""
    return Ladder(lengths=tuple(runtime.max_length for runtime in manifest.runtimes), static_upto=manifest.static_upto)


def searched_ladders(distribution: LengthDistribution) -> dict[str, Ladder]:
    """Return the ladders to compare with by name: dynamic, even, powers of two, and shares of the texts.

    Args:
        distribution: Distribution of the lengths.
    """
    grid = distribution.grid(8)
    lengths: dict[str, Sequence[int]] = {
        f"{n} even": [LONGEST * i // n for i in range(1, n + 1)] for n in (1, 2, 4, 8, 16)
    }
    lengths["powers of two"] = [16, 32, 64, 128, 256, LONGEST]
    for n in (4, 8, 16):
        ends = [next(each for each in grid if each >= length) for length in _quantiles(distribution, n)]
        lengths[f"{n} shares of the texts"] = sorted({*ends, LONGEST})
    found = {name: Ladder(lengths=tuple(each), static_upto=LONGEST) for name, each in lengths.items()}
    return {"dynamic": Ladder(lengths=(LONGEST,), static_upto=0), **found}


def _quantiles(distribution: LengthDistribution, parts: int) -> Iterable[int]:
    below = distribution.shares.cumsum()
    return (int((below < share / parts - 1e-9).sum()) + 1 for share in range(1, parts + 1))


def cell_of(ladder: Ladder, length: int) -> Cell:
    """Return what a query of `length` tokens runs as."""
    padded = next((each for each in ladder.static if each >= length), None)
    return (length, True) if padded is None else (padded, False)


@dataclass(slots=True)
class LadderBench:
    """The engines of all ladders on one compiled model.

    Attributes:
        compiled: The compiled model.
        names: Names of its inputs.
        workers: Number of threads of an engine.
        engines: Opened engines, by static length, or 0 for the dynamic one.
    """

    compiled: Compiled
    names: tuple[str, ...]
    workers: Workers
    engines: dict[int, Engine]

    @classmethod
    def open(cls, manifest: ArloManifest, version: Path) -> LadderBench:
        """Open a published model's compiled file."""
        file = version / "engines" / engine_file(manifest.engine)
        compiled = Compiled(
            manifest.engine, file, manifest.precision, manifest.inputs, 1, manifest.device.kind, PlanOptions()
        )
        return cls(compiled, manifest.inputs, Workers(contexts=1, threads=manifest.profile.threads), {})

    def means(self, ladders: Mapping[str, Ladder], lengths: Sequence[int], seed: int) -> dict[str, float]:
        """Measure the mean latency of single queries by ladder, in milliseconds.

        Args:
            ladders: Ladders by name.
            lengths: Lengths of the queries in tokens.
            seed: Seed of the order.
        """
        cells = {cell_of(ladder, length) for ladder in ladders.values() for length in lengths}
        order = sorted(cells)
        random.Random(seed).shuffle(order)
        took = {cell: self._time(cell) for cell in order}
        return {
            name: statistics.fmean(took[cell_of(ladder, length)] for length in lengths)
            for name, ladder in ladders.items()
        }

    def _time(self, cell: Cell) -> float:
        length, dynamic = cell
        key = 0 if dynamic else length
        if key not in self.engines:
            ((engine,),) = self.compiled.open([(1, LONGEST) if dynamic else length], self.workers)
            self.engines[key] = engine
        engine, batch = self.engines[key], synthetic(self.names, 1, length, _TOKEN)
        engine.run(batch)
        times = []
        for _ in range(_CALLS):
            began = time.perf_counter()
            engine.run(batch)
            times.append((time.perf_counter() - began) * 1e3)
        return statistics.median(times)
