"""Compare the engines of every γ with the source model."""

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
# Relative size of the noise by which an image is changed to detect equal similarities, and the number of noisy copies.
# Rounding in engines is smaller.
_NOISE = 1e-6
_NOISY_COPIES = 6


class Verified(BaseModel):
    """Results of the verification.

    Attributes:
        found: One result per γ.
    """

    found: tuple[GammaVerification, ...]

    @property
    def misses(self) -> tuple[str, ...]:
        """Reasons why the model must not be published, one clause each."""
        return tuple(
            f"γ {each.gamma}: largest error of the features {each.max_abs_error:.3g} exceeds the tolerance "
            f"{each.tolerance:g}"
            for each in self.found
            if not each.max_abs_error <= each.tolerance
        ) + tuple(
            f"γ {each.gamma}: {each.undecided} of {each.samples} images merge other tokens under minimal noise"
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
    """Run random images with random prompts by all engines and by torch, and compare the features.

    Args:
        runner: Runner of the engines.
        model: Reference in torch.
        form: Shapes of the model.
        source: Images and their features by the unmodified source model, the reference of γ = 0; None if `model` is.
        sizes: Batch sizes to run.
        tolerance: Largest accepted difference.
        progress: Called with the share that is done.
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
            # NaN counts as an infinite error.
            np.maximum.at(errors, rows, np.nan_to_num(error, nan=np.inf))
        decided = np.array([error <= tolerance or not _is_unstable(model, gamma, inputs, row, tolerance)
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
    """Yield the rows of batches of each size that together contain every row of `count`."""
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


def _is_unstable(model: TransformerModel, gamma: int, inputs: Inputs, row: int, tolerance: float) -> bool:
    """Whether the reference's own features of an image change strongly under minimal noise.

    If two similarities are equal within rounding, either token may be merged, and the features differ much more than by
    rounding. Such an image does not measure an error.
    """
    if gamma >= 0:
        return False
    draw = np.random.default_rng(row)
    pixels = inputs[PIXELS][row]
    noisy = pixels * (1 + _NOISE * draw.standard_normal((_NOISY_COPIES, *pixels.shape)))
    features = _reference(model, gamma, {PIXELS: np.concatenate([pixels[None], noisy.astype(np.float32)])})
    return bool(np.abs(features[1:] - features[:1]).max() > tolerance)
