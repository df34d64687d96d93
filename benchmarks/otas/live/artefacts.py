"""What the live part needs, made once: models that are trained and built, and images that neither step has seen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: Model switching chooses between these, from fast to accurate; `BASE` is also what OTAS adapts.
SMALL, BASE, LARGE = "vit-small", "vit-base", "vit-large"


class ArtefactsMissing(Exception):
    """Something is not there yet; the text says what."""


@dataclass(frozen=True, slots=True)
class LiveTask:
    """A task's images that were used neither for training nor for the accuracies that policies go by.

    Attributes:
        name: of its folder beside each of the models.
        images: encoded, each once.
        truth: the label of each.
    """

    name: str
    images: tuple[bytes, ...]
    truth: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Artefacts:
    """What was made.

    Attributes:
        folder: where everything lies.
        repository: a model repository of `SMALL`, `BASE` and `LARGE`, each with all the tasks in its folder of tasks;
            `BASE` has every γ, the others at least 0.
        tasks: which they are.
        digest: names recipe, code and data that it all comes from.
    """

    folder: Path
    repository: Path
    tasks: tuple[LiveTask, ...]
    digest: str
