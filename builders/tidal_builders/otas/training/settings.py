"""Settings of the training of a task."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ImageTrainingSettings:
    """Settings of one training; the defaults are those of OTAS §V.

    Attributes:
        epochs: Number of epochs; with `patience`, the largest number.
        head_epochs: Number of epochs for γ up to 0, where only a head is trained, which is fast; None: `epochs`.
        batch: Number of images in a step.
        rate: Largest learning rate; it rises over the first tenth of the steps and falls to 0.
        decay: Weight decay of heads.
        profiled: Share of the images that are not used for training, to measure accuracies on.
        patience: Number of epochs without a higher accuracy on validation images after which the training of prompts
            ends and the best epoch is kept. Heads alone are trained for all their epochs, and the best is kept too.
            None: all epochs are trained, and the last one is kept.
        validated: Share of the other images that are validation images, if there is a `patience`.
        seed: Random seed.
    """

    epochs: int = 50
    head_epochs: int | None = None
    batch: int = 32
    rate: float = 0.002
    decay: float = 1e-4
    profiled: float = 0.2
    patience: int | None = None
    validated: float = 0.1
    seed: int = 0

    def described(self) -> dict[str, str]:
        """Return each setting as a text, for a task's provenance."""
        unused = {"validated"} if self.patience is None else set()
        used = {name: value for name, value in asdict(self).items() if value is not None and name not in unused}
        return {name: f"{value:g}" for name, value in used.items()}

    def epochs_at(self, gamma: int) -> int:
        """Return the number of epochs for a γ."""
        return self.epochs if gamma > 0 or self.head_epochs is None else self.head_epochs
