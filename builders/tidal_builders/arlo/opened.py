"""Opens the engines of one candidate as the `arlo` backend does."""

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
    """A compiled model on disk.

    Attributes:
        kind: Engine kind.
        path: Compiled file.
        precision: Precision to run at.
        input_names: Names of the inputs.
        max_batch: Maximum batch size.
        device: Device to run on.
        options: Options of plans.
    """

    kind: EngineKind
    path: Path
    precision: Precision
    input_names: tuple[str, ...]
    max_batch: int
    device: DeviceKind
    options: PlanOptions

    def files(self, bounds: Sequence[Bound]) -> tuple[Path, ...]:
        """The file that engines of each bound are opened from; plans are built if they do not exist."""
        return specialise_engine(self.kind, self.path, [self._shapes(bound) for bound in bounds], self.options)

    def open(self, bounds: Sequence[Bound], workers: Workers) -> tuple[tuple[Engine, ...], ...]:
        """Open one engine per worker for each bound.

        Args:
            bounds: Fixed lengths, or bounds of dynamic ones.
            workers: Number of engines and the threads of each.

        Returns:
            Engines by bound and worker.
        """
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
    """Opened runtimes.

    Attributes:
        lengths: Lengths of the runtimes in tokens, ascending.
        dynamic: Whether one dynamic runtime serves all lengths.
        engines: Engines by runtime and worker.
    """

    lengths: tuple[int, ...]
    dynamic: bool
    engines: tuple[tuple[Engine, ...], ...]

    def padded_length(self, length: int) -> int:
        """The length to which a query of `length` tokens is padded."""
        return length if self.dynamic else self.lengths[bisect.bisect_left(self.lengths, length)]

    def run(self, batch: Batch, worker: int = 0) -> dict[str, npt.NDArray[Any]]:
        """Run a batch that is padded to a length of `padded_length`.

        Args:
            batch: int64 arrays of shape [rows, length] by input name.
            worker: Number of the worker.

        Returns:
            Outputs by name, with one row per query.
        """
        runtime = 0 if self.dynamic else bisect.bisect_left(self.lengths, batch["input_ids"].shape[1])
        return self.engines[runtime][worker].run(batch)


def bounds_of(lengths: Sequence[int], *, dynamic: bool) -> list[Bound]:
    """The bounds that a form opens engines for: all lengths together, or each length."""
    return [(1, lengths[-1])] if dynamic else list(lengths)


def open_form(compiled: Compiled, lengths: Sequence[int], *, dynamic: bool, workers: Workers) -> Opened:
    """Open a form.

    Args:
        compiled: The compiled model.
        lengths: Lengths of the runtimes in tokens, ascending.
        dynamic: Whether one engine serves all lengths, instead of one per length.
        workers: Number of engines per runtime, and the threads of each.
    """
    return Opened(tuple(lengths), dynamic, compiled.open(bounds_of(lengths, dynamic=dynamic), workers))
