"""How far the engines of every γ are from the source model."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel

from tidal.otas.manifest import PIXELS, PROMPTS, GammaVerification, OtasForm
from tidal.otas.runner import FloatArray, OtasRunner
from tidal_builders.otas.engines import Inputs, draw_inputs
from tidal_builders.otas.transformer import TransformerModel
from tidal_builders.timing import Progress

SAMPLES = 8
# Relative size of the noise under which a reference that decides the same has to stay the same, and how often it is
# tried. Engines' own rounding is smaller.
_NOISE = 1e-6
_TRIES = 6


class Verified(BaseModel):
    """What was found, an entry a γ."""

    found: tuple[GammaVerification, ...]

    @property
    def misses(self) -> tuple[str, ...]:
        """What keeps the model from being published, a clause each."""
        return tuple(
            f"γ {each.gamma}: largest error of the features {each.max_abs_error:.3g} exceeds the tolerance "
            f"{each.tolerance:g}"
            for each in self.found
            if not each.max_abs_error <= each.tolerance
        ) + tuple(
            f"γ {each.gamma}: {each.undecided} of {each.samples} images merge other tokens under the least noise"
            for each in self.found
            if each.undecided > each.samples // 2
        )


def verify(
    runner: OtasRunner,
    model: TransformerModel,
    form: OtasForm,
    source: tuple[torch.Tensor, torch.Tensor] | None,
    *,
    sizes: Collection[int],
    tolerance: float,
    progress: Progress,
) -> Verified:
    """Run random images, each with prompts of its own, by all engines and by torch.

    Args:
        runner: of the engines.
        model: the reference in torch.
        form: of the model.
        source: images and their features by the unmodified source model, which γ = 0 is held to in place of `model`.
        sizes: batch sizes to run.
        tolerance: largest accepted difference.
        progress: told the share that is done.
    """
    found = []
    for number, gamma in enumerate(form.gammas):
        inputs = draw_inputs(form, gamma, SAMPLES, seed=1)
        expected = _reference(model, gamma, inputs)
        if gamma == 0 and source is not None:
            inputs, expected = {PIXELS: source[0].numpy()}, source[1].numpy()
        errors = np.zeros(len(expected), np.float32)
        for rows in _batches(len(expected), sizes):
            part = {name: array[rows] for name, array in inputs.items()}
            features = runner.run(gamma, part[PIXELS], part.get(PROMPTS))
            error = np.abs(features - expected[rows]).max(axis=1)
            # A value that is not a number is no small error.
            np.maximum.at(errors, rows, np.nan_to_num(error, nan=np.inf))
        decided = np.array([error <= tolerance or not _wavers(model, gamma, inputs, row, tolerance)
                            for row, error in enumerate(errors)])  # fmt: skip
        found.append(
            GammaVerification(
                gamma=gamma,
                samples=len(errors),
                undecided=int((~decided).sum()),
                max_abs_error=float(errors[decided].max(initial=0.0)),
                tolerance=tolerance,
            )
        )
        progress((number + 1) / len(form.gammas))
    return Verified(found=tuple(found))


def _batches(count: int, sizes: Collection[int]) -> Iterator[npt.NDArray[np.intp]]:
    """Rows of batches of each size, in which every row of `count` is at least once."""
    for size in sorted(sizes):
        yield from (np.arange(-(-count // size) * size) % count).reshape(-1, size)


def _reference(model: TransformerModel, gamma: int, inputs: Inputs) -> FloatArray:
    prompts = inputs.get(PROMPTS)
    with torch.inference_mode():
        features = model(
            gamma, torch.from_numpy(inputs[PIXELS]), None if prompts is None else torch.from_numpy(prompts)
        )
    result: FloatArray = features.numpy()
    return result


def _wavers(model: TransformerModel, gamma: int, inputs: Inputs, row: int, tolerance: float) -> bool:
    """Whether the reference itself gives other features of an image under the least noise.

    Merging chooses: where two similarities are equal but for rounding, either choice is right, and what comes of them
    differs much more than rounding does. Such an image measures no error.
    """
    if gamma >= 0:
        return False
    draw = np.random.default_rng(row)
    pixels = inputs[PIXELS][row]
    noisy = pixels * (1 + _NOISE * draw.standard_normal((_TRIES, *pixels.shape)))
    features = _reference(model, gamma, {PIXELS: np.concatenate([pixels[None], noisy.astype(np.float32)])})
    return bool(np.abs(features[1:] - features[:1]).max() > tolerance)
