"""An opened encoder: tokenizer, labels, and one engine per lane and runtime."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal import device
from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.arlo.shapes import shape_length, shape_lengths
from tidal.engine_model.manifest import Runtime
from tidal.engines import Engine, open_engines
from tidal.profiles import LatencyProfile
from tidal.text import TextTokenizer

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """Tokens of one query; int64 arrays of shape [length] without padding."""

    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.int64]
    type_ids: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EncoderModel:
    """An opened version with `engines[lane][runtime]`; the lanes of `profile` come first, then those of `parallel`."""

    manifest: ArloManifest
    tokenizer: TextTokenizer
    engines: tuple[tuple[Engine, ...], ...]
    # An engine serves one thread at a time, also while a failed service still runs its last batch.
    locks: tuple[threading.Lock, ...]

    def run(self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None = None) -> dict[str, Array]:
        """Run rows on an engine of this process, which cannot be interrupted; see `BatchRunner`."""
        inputs = padded_inputs(self.manifest, runtime, rows)
        with self.locks[lane]:
            return self.engines[lane][runtime].run(inputs)

    def warm_up(self) -> None:
        """Run every engine once at each length that it pads to, since the first pass of a shape is slow.

        Runtimes that accept any length run at each measured length.
        """
        for lane in range(len(self.engines)):
            for runtime, spec in enumerate(self.manifest.runtimes):
                below = self.manifest.runtimes[runtime - 1].max_length if runtime else 0
                for length in self._known_lengths(below, spec):
                    row = np.zeros(length, np.int64)
                    self.run(lane, runtime, [TokenRow(row, np.ones(length, np.int64), row)])

    def _known_lengths(self, below: int, runtime: Runtime) -> Sequence[int]:
        """Return lengths to warm a runtime up for, which serves queries longer than `below` tokens."""
        if not runtime.dynamic:
            return [runtime.max_length]
        if self.manifest.extra_outputs:
            return shape_lengths(below, runtime.max_length)
        return [n for n in self.manifest.profile.lengths if below < n <= runtime.max_length] or [runtime.max_length]


def padded_inputs(manifest: ArloManifest, runtime: int, rows: Sequence[TokenRow]) -> dict[str, Array]:
    """Return engine inputs, INT64 [rows, length], padded to `padded_length`."""
    length = padded_length(manifest, runtime, max(len(row.ids) for row in rows))
    ids = np.full((len(rows), length), manifest.tokenizer.pad_token_id, np.int64)
    mask = np.zeros((len(rows), length), np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = row.ids
        mask[i, : len(row.ids)] = row.mask
    inputs = {"input_ids": ids, "attention_mask": mask}
    if manifest.tokenizer.type_ids:
        inputs["token_type_ids"] = np.zeros((len(rows), length), np.int64)
        for i, row in enumerate(rows):
            inputs["token_type_ids"][i, : len(row.ids)] = row.type_ids
    return inputs


def padded_length(manifest: ArloManifest, runtime: int, longest: int) -> int:
    """Return the length that a batch is padded to.

    For a static runtime it is the runtime's `max_length`, for a dynamic one the longest query. With further outputs
    than the logits, only few lengths are used: OpenVINO then does not fuse attention, and compiles kernels for each new
    shape, which took 9 ms for two layers whose pass takes 3 ms.

    Args:
        manifest: Manifest of the version.
        runtime: Index of the runtime.
        longest: Length of the longest query in the batch, in tokens.
    """
    spec = manifest.runtimes[runtime]
    if not spec.dynamic:
        return spec.max_length
    return shape_length(longest, spec.max_length) if manifest.extra_outputs else longest


def open_model(version_dir: Path, *, truncate: bool = False) -> EncoderModel:
    """Check a published version against this machine, open its engines and warm them up.

    There is one lane per engine of the measured profiles, with the same number of threads.

    Args:
        version_dir: Folder of the version.
        truncate: Whether to truncate texts that exceed the model's limit instead of refusing them.

    Raises:
        InvalidArgument: The manifest does not match the files, this device or the installed engine library.
    """
    manifest = load_arlo_manifest(version_dir)
    manifest.check(version_dir, device.here(manifest.device.kind))
    engines: list[tuple[Engine, ...]] = []
    for profile in (manifest.profile, manifest.parallel):
        if profile is not None:
            engines += _open_lanes(manifest, version_dir, profile)
    tokenizer = TextTokenizer(version_dir / manifest.tokenizer.file, manifest.max_length, truncate=truncate)
    locks = tuple(threading.Lock() for _ in engines)
    model = EncoderModel(manifest, tokenizer, tuple(engines), locks)
    model.warm_up()
    return model


def _open_lanes(manifest: ArloManifest, version_dir: Path, profile: LatencyProfile) -> list[tuple[Engine, ...]]:
    """Open the engines of each lane of a profile, as one tuple by runtime per lane."""
    opened: dict[object, tuple[Engine, ...]] = {}
    by_runtime = []
    for runtime in manifest.runtimes:
        # Dynamic runtimes of one file share one engine, opened once for the longest.
        key = (runtime.file, "dynamic" if runtime.dynamic else runtime.max_length)
        if key not in opened:
            widest = max(
                (r for r in manifest.runtimes if r.file == runtime.file and r.dynamic == runtime.dynamic),
                key=lambda r: r.max_length,
            )
            artifact = manifest.artifact(widest if runtime.dynamic else runtime, version_dir)
            opened[key] = open_engines(artifact, contexts=profile.concurrency, threads=profile.threads)
        by_runtime.append(opened[key])
    return list(zip(*by_runtime, strict=True))


def stack_rows(rows: Sequence[Mapping[str, Array]], name: str) -> Array:
    """Return one output of several queries as an array [rows, longest], zero-padded."""
    parts = [row[name] for row in rows]
    if len(parts) == 1:
        return parts[0][None]
    longest = max(len(part) for part in parts)
    out = np.zeros((len(parts), longest), parts[0].dtype)
    for i, part in enumerate(parts):
        out[i, : len(part)] = part
    return out
