"""Recipe of the live part's vision transformers and tasks: sizes and trainings."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.otas.live.artefacts import BASE, LARGE, SMALL
from tidal.otas.manifest import ImageConfig
from tidal_builders.otas.training.pretrain import Variation
from tidal_builders.otas.training.settings import ImageTrainingSettings
from tidal_builders.otas.vit import VitConfig

#: Tasks by the names of their folders.
CIFAR10, CLOTHING, DIGITS = "cifar10", "clothing", "digits"
PARITY, NOISY = "digits-parity", "digits-noisy"

_PIXELS, _PATCH = 32, 4
# The paper's list in proportion to 64 patches and 8 layers is -10 to 4. These models lose so little by merging and have
# so many tokens left that larger changes pay in both directions.
_SMALL_GAMMAS = (-20, -10, -5, -2, 0, 2, 4, 8)
# The same for 64 patches and 12 layers is -7, -5, -3, -2, 0, 1, 3, where a prompt more is hardly a cost.
_GAMMAS = (-7, -5, -3, -2, 0, 2, 8)


@dataclass(frozen=True, slots=True)
class Size:
    """A vision transformer that is trained from scratch.

    Attributes:
        name: Name in the repository.
        width: Width of a token.
        layers: Number of layers.
        heads: Number of attention heads per layer.
        epochs: Number of epochs.
        gammas: List of γ that it serves.
        seen: Share of an image's patches used in pretraining; fewer patches are faster.
    """

    name: str
    width: int
    layers: int
    heads: int
    epochs: int
    gammas: tuple[int, ...] = (0,)
    seen: float = 1.0

    @property
    def config(self) -> VitConfig:
        """Its config: colour images, scaled to 32 x 32 pixels, in 64 patches."""
        image = ImageConfig(
            channels=3,
            height=_PIXELS,
            width=_PIXELS,
            crop_pct=1.0,
            crop_mode="squash",
            interpolation="bicubic",
            mean=(0.5,) * 3,
            std=(0.5,) * 3,
        )
        return VitConfig(
            architecture=self.name,
            image=image,
            patch=(_PATCH, _PATCH),
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            inner=4 * self.width,
        )


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A published vision transformer, see `pretrained`.

    Attributes:
        name: Name in the repository.
        pixels: Height and width of the images; more pixels are slower and more accurate.
        gammas: List of γ that it serves.
    """

    name: str
    pixels: int
    gammas: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class FromNothing:
    """Training of transformers of a `Size`.

    Attributes:
        task: Name of the task whose training images are used.
        settings: Batch size and learning rate; the number of epochs belongs to the size.
        variation: Data augmentation.
    """

    task: str
    settings: ImageTrainingSettings
    variation: Variation


@dataclass(frozen=True, slots=True)
class Training:
    """A task, and the settings of its training."""

    task: str
    settings: ImageTrainingSettings


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines the artefacts, except code and data.

    Attributes:
        sizes: The transformers.
        tasks: Tasks that are trained for each transformer.
        pretraining: Training of each `Size` among the transformers.
        profile_seconds: Time to measure each γ of a transformer, in seconds.
        threads: Number of threads of an engine; the other cores are for clients and server, as next to a GPU.
    """

    sizes: tuple[Size | Pretrained, ...]
    tasks: tuple[Training, ...]
    pretraining: FromNothing | None = None
    profile_seconds: float = 30.0
    threads: int = 1

    def training(self, task: str) -> ImageTrainingSettings:
        """Return the training of a task."""
        return next(each.settings for each in self.tasks if each.task == task)


# The published settings, with early stopping: at most 50 epochs of prompts, at a rate of 0.002 and in batches of 32.
_PHOTOGRAPHS = ImageTrainingSettings(epochs=50, head_epochs=200, patience=10)
#: With real photographs: 4,000 of CIFAR-10 and 3,068 of clothing.
PHOTOGRAPHS = Recipe(
    sizes=(Pretrained(SMALL, 70), Pretrained(BASE, 112, _GAMMAS), Pretrained(LARGE, 168)),
    tasks=tuple(Training(task, _PHOTOGRAPHS) for task in (CIFAR10, CLOTHING, DIGITS)),
)
_TASK = ImageTrainingSettings(epochs=50, head_epochs=200, rate=0.02, patience=5)
#: Without: hand-written digits alone. Which digit it is, whether it is even, and which one it is behind noise. The base
#: takes about 4 ms an image on a core: a server has to be kept busy by its engine, not by what surrounds it.
DIGITS_ALONE = Recipe(
    sizes=(
        Size(SMALL, 96, 5, 3, 60),
        Size(BASE, 192, 8, 6, 40, gammas=_SMALL_GAMMAS),
        Size(LARGE, 256, 8, 8, 40, seen=0.5),
    ),
    tasks=tuple(Training(task, _TASK) for task in (DIGITS, PARITY, NOISY)),
    pretraining=FromNothing(DIGITS, ImageTrainingSettings(batch=64, rate=0.001), Variation(shift=4)),
)
