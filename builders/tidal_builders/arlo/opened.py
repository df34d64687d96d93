"""Engines of one candidate, opened as the `arlo` backend would open them."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tidal.engines import Artifact, Engine, EngineKind, Precision, open_engines
from tidal_builders.arlo.samples import Batch
from tidal_builders.fingerprint import Workers


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled model on disk and what it takes."""

    kind: EngineKind
    path: Path
    precision: Precision
    input_names: tuple[str, ...]
    max_batch: int

    def open(self, length: int | tuple[int, int], workers: Workers) -> tuple[Engine, ...]:
        """One engine a worker for a fixed length, or for lengths between bounds."""
        shapes = dict.fromkeys(self.input_names, ((1, self.max_batch), length))
        artifact = Artifact(self.kind, self.path, self.precision, shapes)
        return open_engines(artifact, contexts=workers.contexts, threads=workers.threads)


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


def open_form(compiled: Compiled, lengths: Sequence[int], *, dynamic: bool, workers: Workers) -> Opened:
    """Open one engine for all lengths, or one for each."""
    bounds: list[int | tuple[int, int]] = [(1, lengths[-1])] if dynamic else list(lengths)
    return Opened(tuple(lengths), dynamic, tuple(compiled.open(bound, workers) for bound in bounds))
