"""Measure a task's accuracy at every γ on the engines that will serve it: the task profiler (OTAS §III-A)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidal.otas.manifest import OtasForm
from tidal.otas.runner import OtasRunner
from tidal.otas.tasks import TaskParameters
from tidal_builders.otas.training.images import LabelledImages, Pixels

_MAX_BATCH = 32


def measure_accuracy(
    runner: OtasRunner,
    form: OtasForm,
    parameters: TaskParameters,
    images: LabelledImages,
    progress: Callable[[float], None] = lambda _: None,
) -> dict[int, float]:
    """Return the accuracy by γ.

    Args:
        runner: Runner of the published model.
        form: Shapes of the model.
        parameters: Parameters of the task, with the same labels as the images.
        images: Images that were not used for training.
        progress: Called with the share that is done.
    """
    pixels = Pixels(images, form.image)
    right = dict.fromkeys(form.gammas, 0)
    batch = min(_MAX_BATCH, form.max_batch)
    for begin in range(0, len(images), batch):
        rows = range(begin, min(begin + batch, len(images)))
        values, truth = pixels(rows), images.truth[rows.start : rows.stop]
        for gamma in form.gammas:
            prompts = parameters.prompts.get(gamma) if gamma > 0 else None
            repeated = None if prompts is None else np.broadcast_to(prompts, (len(rows), *prompts.shape))
            answers = parameters.logits(gamma, runner.run(gamma, values, repeated)).argmax(axis=1)
            right[gamma] += int((answers == truth).sum())
        progress(rows.stop / len(images))
    return {gamma: count / len(images) for gamma, count in right.items()}
