"""The engines of a published vision transformer behind one call: a batch of images at a γ."""

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

# Images of the largest batch that gets a first pass beforehand, and the time that these may add to a model's loading.
_WARM_BATCH, _WARM_S = 16, 5.0


@dataclass(frozen=True, slots=True)
class GammaEngines:
    """What runs one γ: engines of one batch size each, and perhaps one of any size."""

    fixed: Mapping[int, Engine]
    dynamic: Engine | None

    def pieces(self, images: int) -> list[tuple[Engine, int]]:
        """Engines to run one after the other for so many images, each with the rows that it takes."""
        if (exact := self.fixed.get(images)) is not None:
            return [(exact, images)]
        if self.dynamic is not None:
            return [(self.dynamic, images)]
        return [(self.fixed[size], size) for size in split(images, sorted(self.fixed))]


class OtasRunner:
    """Runs batches at any γ of the model, one at a time; γ belongs to the call, and nothing is kept between calls."""

    def __init__(self, form: OtasForm, engines: Mapping[int, GammaEngines]) -> None:
        """Use `open_runner`.

        Args:
            form: of the model.
            engines: by γ, for all of the form's.
        """
        self._form = form
        self._engines = engines

    def run(self, gamma: int, pixel_values: FloatArray, prompts: FloatArray | None = None) -> FloatArray:
        """The features of a batch of images, rows in the order of the images.

        Args:
            gamma: one of the model's.
            pixel_values: [images, channels, height, width], 1 to `max_batch` images.
            prompts: [images, layers, γ, width], every row its own task's; None where γ is not above 0.

        Returns:
            [images, width], the caller's own.

        Raises:
            InvalidArgument: γ is none of the model's, there are no images or too many, or prompts do not fit γ.
        """
        form, images = self._form, len(pixel_values)
        if gamma not in self._engines:
            raise InvalidArgument(f"γ {gamma} is none of {', '.join(map(str, form.gammas))}")
        if not 1 <= images <= form.max_batch:
            raise InvalidArgument(f"a batch of {images} images; accepted are 1 to {form.max_batch}")
        inputs = {PIXELS: pixel_values} | ({} if prompts is None else {PROMPTS: prompts})
        wanted = form.prompt_shape(gamma)
        came = None if prompts is None else prompts.shape
        if came != (None if wanted is None else (images, *wanted)):
            raise InvalidArgument(f"prompts of shape {came}; γ {gamma} takes {wanted} for each of {images} images")
        results, begin = [], 0
        for engine, rows in self._engines[gamma].pieces(images):
            part = {name: array[begin : begin + rows] for name, array in inputs.items()}
            results.append(engine.run(part)[FEATURES])
            begin += rows
        return results[0] if len(results) == 1 else np.concatenate(results)

    def warm_up(self, seconds: float = _WARM_S) -> None:
        """Make first passes, so that queries do not pay for them.

        Every engine runs once. Some compile parts of themselves anew for each number of images, which takes longer than
        many a batch: those that take any number run as many, from the fewest on, at every γ as there is time.

        Args:
            seconds: for passes beyond the first of each engine.
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
    """Open all engines of a version; those of several γ are opened once.

    Raises:
        Unsupported: the engine's library is not installed, which names the extra that brings it.
        TidalError: a file cannot be opened.
    """
    opened = {
        each: open_engines(manifest.artifact(each, version_dir), threads=manifest.threads)[0]
        for each in manifest.engines
    }
    return OtasRunner(manifest, by_gamma(manifest, opened))


def by_gamma(form: OtasForm, opened: Mapping[OtasEngine, Engine]) -> dict[int, GammaEngines]:
    """Engines that were opened, by what they run."""
    found = {}
    for gamma in form.gammas:
        sizes = {each.batch: engine for each, engine in opened.items() if gamma in each.gammas}
        found[gamma] = GammaEngines({size: engine for size, engine in sizes.items() if size}, sizes.get(None))
    return found


def split(images: int, sizes: Sequence[int]) -> list[int]:
    """Sizes that add up to a number of images, the largest first; `sizes` ascend and begin with 1."""
    parts = []
    for size in reversed(sizes):
        parts += [size] * (images // size)
        images %= size
    return parts
