"""Division of a task's images: to train on, to stop the training by, and to measure accuracies on."""

from __future__ import annotations

from dataclasses import dataclass

from tidal_builders.otas.training.images import LabelledImages
from tidal_builders.otas.training.settings import ImageTrainingSettings


@dataclass(frozen=True, slots=True)
class DividedImages:
    """Disjoint parts of labelled images.

    Attributes:
        trained: Images to train on.
        validation: Images on which accuracy is measured after every epoch; None without early stopping.
        profiled: Images on which the accuracies of the trained task are measured, used for nothing else.
    """

    trained: LabelledImages
    validation: LabelledImages | None
    profiled: LabelledImages


def divide(images: LabelledImages, settings: ImageTrainingSettings) -> DividedImages:
    """Divide images at random; equal seeds give equal parts.

    Args:
        images: The images.
        settings: Shares and seed.

    Raises:
        InvalidArgument: There are too few images.
    """
    rest, profiled = images.split(settings.profiled, settings.seed)
    if settings.patience is None:
        return DividedImages(rest, None, profiled)
    trained, validation = rest.split(settings.validated, settings.seed)
    return DividedImages(trained, validation, profiled)
