"""Engines of one candidate, opened as the `arlo` backend would open them."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tidal.device import DeviceKind
from tidal.engines import Artifact, Engine, EngineKind, PlanOptions, Precision, open_engines, specialise_engine
from tidal_builders.arlo.workers import Workers
from tidal_builders.samples import Batch

# A fixed length, or the inclusive bounds of a dynamic one.
Bound = int | tuple[int, int]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled model on disk and what it takes."""

    kind: EngineKind
    path: Path
    precision: Precision
    input_names: tuple[str, ...]
    max_batch: int
    device: DeviceKind
    options: PlanOptions

    def files(self, bounds: Sequence[Bound]) -> tuple[Path, ...]:
        """The file that each of these is opened from, made where it takes one made for its shapes."""
        return specialise_engine(self.kind, self.path, [self._shapes(bound) for bound in bounds], self.options)

    def open(self, bounds: Sequence[Bound], workers: Workers) -> tuple[tuple[Engine, ...], ...]:
        """One engine a worker for each fixed length, or for lengths between bounds."""
        return tuple(
            open_engines(
                Artifact(self.kind, path, self.precision, self._shapes(bound), self.device),
                contexts=workers.contexts,
                threads=workers.threads,
            )
            for bound, path in zip(bounds, self.files(bounds), strict=True)
        )

    def _shapes(self, bound: Bound) -> dict[str, tuple[tuple[int, int], Bound]]:
        return dict.fromkeys(self.input_names, ((1, self.max_batch), bound))


@dataclass(frozen=True, slots=True)
class Opened:
    """Runtimes by length, ascending; `engines[runtime][worker]`. A dynamic form has one runtime for all lengths."""

    lengths: tuple[int, ...]
    dynamic: bool
    engines: tuple[tuple[Engine, ...], ...]

    def padded_length(self, length: int) -> int:
        """The length that a query of `length` tokens runs at."""
        return length if self.dynamic else self.lengths[bisect.bisect_left(self.lengths, length)]

    def run(self, batch: Batch, worker: int = 0) -> dict[str, npt.NDArray[Any]]:
        """Run a batch whose length is one of `padded_length`."""
        runtime = 0 if self.dynamic else bisect.bisect_left(self.lengths, batch["input_ids"].shape[1])
        return self.engines[runtime][worker].run(batch)


def bounds_of(lengths: Sequence[int], *, dynamic: bool) -> list[Bound]:
    """What a form opens: one engine for all lengths, or one for each."""
    return [(1, lengths[-1])] if dynamic else list(lengths)


def open_form(compiled: Compiled, lengths: Sequence[int], *, dynamic: bool, workers: Workers) -> Opened:
    """Open one engine for all lengths, or one for each."""
    return Opened(tuple(lengths), dynamic, compiled.open(bounds_of(lengths, dynamic=dynamic), workers))
