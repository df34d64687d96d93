"""An opened encoder: tokenizer, labels, and one engine per lane and runtime."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tidal import device
from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.arlo.shapes import shape_length, shape_lengths
from tidal.encoder_tasks import task_entry
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.engine_model.manifest import Runtime
from tidal.engines import Engine, engine_entry, open_engines
from tidal.engines.base import AsyncEngine, StartedRun
from tidal.profiles import LatencyProfile
from tidal.text import TextTokenizer

Array = npt.NDArray[Any]


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

    def start(
        self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None = None
    ) -> EncoderRun | None:
        """Start rows on an engine of this process, which cannot be interrupted; see `AsyncBatchRunner`."""
        engine, lock = self.engines[lane][runtime], self.locks[lane]
        # A lock that is held belongs to a failed service that still runs its last batch.
        if not hasattr(engine, "start") or not lock.acquire(blocking=False):
            return None
        try:
            run = cast(AsyncEngine, engine).start(padded_inputs(self.manifest, runtime, rows))
        except BaseException:
            lock.release()
            raise
        return EncoderRun(run, lock)

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


class EncoderRun:
    """A batch that an engine runs; it owns the lane's lock until it has ended.

    Args:
        run: The engine's run.
        lock: Lock of the lane, which any thread may release.
    """

    def __init__(self, run: StartedRun, lock: threading.Lock) -> None:
        self._run = run
        self._lock = lock

    def wait(self, timeout_s: float | None = None) -> dict[str, Array] | None:
        """See `StartedRun.wait`."""
        try:
            outputs = self._run.wait(timeout_s)
        except BaseException:
            self._lock.release()
            raise
        if outputs is not None:
            self._lock.release()
        return outputs


def padded_inputs(manifest: ArloManifest, runtime: int, rows: Sequence[TokenRow]) -> dict[str, Array]:
    """Return engine inputs, INT64 [rows, length], padded to `padded_length`."""
    lengths = [len(row.ids) for row in rows]
    length = padded_length(manifest, runtime, max(lengths))
    inside = None if min(lengths) == length else np.arange(length) < np.array(lengths)[:, None]
    ids, mask, type_ids, _ = zip(*rows, strict=True)
    inputs = {
        "input_ids": _padded(ids, length, inside, manifest.tokenizer.pad_token_id),
        "attention_mask": _padded(mask, length, inside, 0),
    }
    if manifest.tokenizer.type_ids:
        inputs["token_type_ids"] = _padded(type_ids, length, inside, 0)
    return inputs


def _padded(
    rows: Sequence[npt.NDArray[np.int64]], length: int, inside: npt.NDArray[np.bool_] | None, fill: int
) -> Array:
    """Return rows as an array [rows, length], with `fill` where `inside` is false; None: nowhere."""
    values = np.concatenate(rows)
    if inside is None:
        return values.reshape(-1, length)
    padded = np.full(inside.shape, fill, np.int64)
    padded[inside] = values
    return padded


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


def open_model(version_dir: Path, *, truncate: bool = False, longest: int | None = None) -> EncoderModel:
    """Check a published version against this machine, open its engines and warm them up.

    There is one lane per engine of the measured profiles, with the same number of threads.

    Args:
        version_dir: Folder of the version.
        truncate: Whether to truncate texts that exceed the model's limit instead of refusing them.
        longest: Maximum length of a text in tokens if the caller cuts longer ones than the model reads; None: it
            does not.

    Raises:
        InvalidArgument: The manifest does not match the files, this device or the installed engine library.
    """
    manifest = load_arlo_manifest(version_dir)
    manifest.check(version_dir, device.here(manifest.device.kind))
    engines: list[tuple[Engine, ...]] = []
    engines += _open_lanes(manifest, version_dir, manifest.profile)
    if manifest.parallel is not None:
        engines += _open_lanes(manifest, version_dir, manifest.parallel, queued_batches(manifest))
    tokenizer = open_text_tokenizer(manifest, version_dir, truncate=truncate, longest=longest)
    locks = tuple(threading.Lock() for _ in engines)
    model = EncoderModel(manifest, tokenizer, tuple(engines), locks)
    model.warm_up()
    return model


def queued_batches(manifest: ArloManifest) -> int:
    """Number of batches that are started while all engines with one thread run.

    Only where all of them run on one compiled model: others would not wait for its contexts.
    """
    queues = engine_entry(manifest.engine).queues_runs and manifest.parallel is not None and not manifest.static_upto
    return 1 if queues else 0


def open_text_tokenizer(
    manifest: ArloManifest, version_dir: Path, *, truncate: bool, longest: int | None
) -> TextTokenizer:
    """Open a version's tokenizer, with offsets if its task needs them.

    Args:
        manifest: Manifest of the version.
        version_dir: Folder of the version.
        truncate: Whether to truncate texts that exceed the model's limit instead of refusing them.
        longest: Maximum length of a text in tokens if the caller cuts longer ones; None: it does not.
    """
    offsets = task_entry(manifest.task).offsets
    file = version_dir / manifest.tokenizer.file
    return TextTokenizer(file, manifest.max_length, truncate=truncate, offsets=offsets, longest=longest)


def _open_lanes(
    manifest: ArloManifest, version_dir: Path, profile: LatencyProfile, queued: int = 0
) -> list[tuple[Engine, ...]]:
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
            opened[key] = open_engines(artifact, contexts=profile.concurrency, threads=profile.threads, queued=queued)
        by_runtime.append(opened[key])
    return list(zip(*by_runtime, strict=True))
