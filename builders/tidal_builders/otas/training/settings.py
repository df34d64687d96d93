"""How a task is trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one training, as published in §V.

    Attributes:
        epochs: passes over all images.
        batch: images in a step.
        rate: the largest learning rate; it rises over the first tenth of the steps and falls to 0.
        decay: weight decay of heads.
        profiled: share of the images that accuracies are measured on, which training does not see.
        seed: of all that is drawn.
    """

    epochs: int = 50
    batch: int = 32
    rate: float = 0.002
    decay: float = 1e-4
    profiled: float = 0.2
    seed: int = 0

    def described(self) -> dict[str, str]:
        """Each as a text, for a task's provenance."""
        return {name: f"{value:g}" for name, value in asdict(self).items()}
