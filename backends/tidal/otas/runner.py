"""Run a batch of images at a γ on the engines of a published vision transformer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidal.engines import Engine, open_engines
from tidal.errors import InvalidArgument
from tidal.otas.manifest import FEATURES, PIXELS, PROMPTS, OtasEngine, OtasForm, OtasManifest

FloatArray = npt.NDArray[np.float32]

# Largest batch that is warmed up, and the time limit of these passes at the model's load.
_WARM_BATCH, _WARM_S = 16, 5.0


@dataclass(frozen=True, slots=True)
class GammaEngines:
    """Engines of one γ.

    Attributes:
        fixed: Engines of one batch size each, by that size.
        dynamic: Engine of any batch size; None if there is none.
    """

    fixed: Mapping[int, Engine]
    dynamic: Engine | None

    def split(self, images: int) -> list[tuple[Engine, int]]:
        """Return the engines to run one after the other for a number of images, each with its number of images."""
        if (exact := self.fixed.get(images)) is not None:
            return [(exact, images)]
        if self.dynamic is not None:
            return [(self.dynamic, images)]
        return [(self.fixed[size], size) for size in split_batch(images, sorted(self.fixed))]


class OtasRunner:
    """Runs batches at any γ of the model, one at a time, without state between calls."""

    def __init__(self, form: OtasForm, engines: Mapping[int, GammaEngines]) -> None:
        """Use `open_runner`.

        Args:
            form: Shapes of the model.
            engines: Engines by γ, for every γ of the model.
        """
        self._form = form
        self._engines = engines

    def run(self, gamma: int, pixel_values: FloatArray, prompts: FloatArray | None = None) -> FloatArray:
        """Run a batch of images.

        Args:
            gamma: The γ of the batch, one of the model's.
            pixel_values: Images, of shape [images, channels, height, width]; 1 to `max_batch` of them.
            prompts: Prompts of each image's task, of shape [images, layers, γ, width]; None if γ is not above 0.

        Returns:
            Features of shape [images, width], which the caller may modify.

        Raises:
            InvalidArgument: The model does not have γ, there are no or too many images, or prompts do not fit γ.
        """
        form, images = self._form, len(pixel_values)
        if gamma not in self._engines:
            raise InvalidArgument(f"γ is {gamma}; accepted: {', '.join(map(str, form.gammas))}")
        if not 1 <= images <= form.max_batch:
            raise InvalidArgument(f"the batch has {images} images; accepted: 1 to {form.max_batch}")
        inputs = {PIXELS: pixel_values} | ({} if prompts is None else {PROMPTS: prompts})
        expected = form.prompt_shape(gamma)
        received = None if prompts is None else prompts.shape
        if received != (None if expected is None else (images, *expected)):
            raise InvalidArgument(
                f"prompts have shape {received}; γ {gamma} takes {expected} for each of {images} images"
            )
        results, begin = [], 0
        for engine, rows in self._engines[gamma].split(images):
            part = {name: array[begin : begin + rows] for name, array in inputs.items()}
            results.append(engine.run(part)[FEATURES])
            begin += rows
        return results[0] if len(results) == 1 else np.concatenate(results)

    def warm_up(self, seconds: float = _WARM_S) -> None:
        """Run warm-up passes, so that the first queries are not slower.

        Every engine runs once. Engines of any batch size compile some parts for each size, which can take longer than
        a batch: they run each size from the smallest on, at every γ, within the time limit.

        Args:
            seconds: Time limit of the passes after the first of each engine, in seconds.
        """
        for gamma, engines in self._engines.items():
            for size in sorted({*engines.fixed, *([1] if engines.dynamic is not None else [])}):
                self._run_zeros(gamma, size)
        until = time.monotonic() + seconds
        for size in range(2, min(_WARM_BATCH, self._form.max_batch) + 1):
            for gamma, engines in self._engines.items():
                if time.monotonic() > until:
                    return
                if engines.dynamic is not None and size not in engines.fixed:
                    self._run_zeros(gamma, size)

    def _run_zeros(self, gamma: int, images: int) -> None:
        form = self._form
        shape = form.prompt_shape(gamma)
        prompts = None if shape is None else np.zeros((images, *shape), np.float32)
        self.run(gamma, np.zeros((images, *form.image.shape), np.float32), prompts)


def open_runner(manifest: OtasManifest, version_dir: Path) -> OtasRunner:
    """Open all engines of a version; an engine of several γ is opened once.

    Raises:
        Unsupported: The engine's library is not installed; names the extra that installs it.
        TidalError: A file cannot be opened.
    """
    opened = {
        each: open_engines(manifest.artifact(each, version_dir), threads=manifest.threads)[0]
        for each in manifest.engines
    }
    return OtasRunner(manifest, by_gamma(manifest, opened))


def by_gamma(form: OtasForm, opened: Mapping[OtasEngine, Engine]) -> dict[int, GammaEngines]:
    """Group opened engines by the γ that they run."""
    found = {}
    for gamma in form.gammas:
        sizes = {each.batch: engine for each, engine in opened.items() if gamma in each.gammas}
        found[gamma] = GammaEngines({size: engine for size, engine in sizes.items() if size}, sizes.get(None))
    return found


def split_batch(images: int, sizes: Sequence[int]) -> list[int]:
    """Return batch sizes that add up to `images`, largest first; `sizes` are ascending from 1."""
    parts = []
    for size in reversed(sizes):
        parts += [size] * (images // size)
        images %= size
    return parts
