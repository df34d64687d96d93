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
from tidal_builders.arlo.ladder import Bound, Ladder
from tidal_builders.arlo.workers import Workers
from tidal_builders.samples import Batch


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
        ladder: Lengths of the runtimes, and which are static.
        engines: Engines by runtime and worker: those of the static lengths, then one for all longer queries.
    """

    ladder: Ladder
    engines: tuple[tuple[Engine, ...], ...]

    def padded_length(self, length: int) -> int:
        """The length to which a query of `length` tokens is padded."""
        lengths = self.ladder.static
        return lengths[bisect.bisect_left(lengths, length)] if length <= self.ladder.static_upto else length

    def run(self, batch: Batch, worker: int = 0) -> dict[str, npt.NDArray[Any]]:
        """Run a batch that is padded to a length of `padded_length`.

        Args:
            batch: int64 arrays of shape [rows, length] by input name.
            worker: Number of the worker.

        Returns:
            Outputs by name, with one row per query.
        """
        # Longer than all static lengths: the last engine.
        return self.engines[bisect.bisect_left(self.ladder.static, batch["input_ids"].shape[1])][worker].run(batch)


def open_form(compiled: Compiled, ladder: Ladder, workers: Workers) -> Opened:
    """Open the engines of all runtimes.

    Args:
        compiled: The compiled model.
        ladder: Lengths of the runtimes, and which are static.
        workers: Number of engines per runtime, and the threads of each.
    """
    return Opened(ladder, compiled.open(ladder.bounds, workers))
