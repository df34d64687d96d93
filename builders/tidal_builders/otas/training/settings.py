"""How a task is trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one training, as published in §V.

    Attributes:
        epochs: passes over all images.
        head_epochs: the same where γ is not above 0, so that a head is all that is trained, which takes little time;
            None: as many.
        batch: images in a step.
        rate: the largest learning rate; it rises over the first tenth of the steps and falls to 0.
        decay: weight decay of heads.
        profiled: share of the images that accuracies are measured on, which training does not see.
        seed: of all that is drawn.
    """

    epochs: int = 50
    head_epochs: int | None = None
    batch: int = 32
    rate: float = 0.002
    decay: float = 1e-4
    profiled: float = 0.2
    seed: int = 0

    def described(self) -> dict[str, str]:
        """Each as a text, for a task's provenance."""
        return {name: f"{value:g}" for name, value in asdict(self).items() if value is not None}

    def epochs_at(self, gamma: int) -> int:
        """Passes for a γ."""
        return self.epochs if gamma > 0 or self.head_epochs is None else self.head_epochs
