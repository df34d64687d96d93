"""Artefacts of the live part, built once: trained models, and images that were not used for training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: Model switching chooses among these, from fast to accurate; OTAS adapts `BASE`.
SMALL, BASE, LARGE = "vit-small", "vit-base", "vit-large"


class ArtefactsMissing(Exception):
    """An artefact has not been built; the message names it."""


@dataclass(frozen=True, slots=True)
class LiveTask:
    """Images of a task that were used neither for training nor for measuring accuracies.

    Attributes:
        name: Name of the task in each of the models.
        images: Encoded images, all different.
        truth: Label of each image.
    """

    name: str
    images: tuple[bytes, ...]
    truth: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OtasArtefacts:
    """Built artefacts.

    Attributes:
        folder: Folder of all artefacts.
        repository: Model repository of `SMALL`, `BASE` and `LARGE`, each with all tasks; `BASE` has every γ, the others
            at least 0.
        tasks: The tasks and their images.
        digest: Digest of recipe, code and data that they were built from.
    """

    folder: Path
    repository: Path
    tasks: tuple[LiveTask, ...]
    digest: str
