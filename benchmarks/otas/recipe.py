"""How the live part's vision transformers and tasks are made: sizes, and how long each is trained."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.otas.live.artefacts import BASE, LARGE, SMALL
from tidal.otas.manifest import ImageConfig
from tidal_builders.otas.training.pretrain import Variation
from tidal_builders.otas.training.settings import Settings
from tidal_builders.otas.vit import VitConfig

#: Tasks by the names of their folders.
CIFAR10, CLOTHING, DIGITS = "cifar10", "clothing", "digits"
PARITY, NOISY = "digits-parity", "digits-noisy"

_PIXELS, _PATCH = 32, 4


@dataclass(frozen=True, slots=True)
class Size:
    """A vision transformer that is trained from nothing.

    Attributes:
        name: in the repository.
        width: of a token.
        layers: how many.
        heads: of each layer's attention.
        epochs: passes over the images.
        gammas: that it serves; None for all that the builder takes by itself.
    """

    name: str
    width: int
    layers: int
    heads: int
    epochs: int
    gammas: tuple[int, ...] | None = (0,)

    @property
    def config(self) -> VitConfig:
        """Its form: images of 32 x 32 pixels in colour, whatever they come as, in 64 patches."""
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
class Training:
    """A task by name, and how its heads and prompts are trained."""

    task: str
    settings: Settings


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what is made, but for code and data.

    Attributes:
        sizes: of the transformers.
        pretrained_on: task whose images for training the transformers learn from.
        pretraining: batch and rate; epochs are a size's own.
        variation: of these images.
        tasks: that are then trained beside each transformer.
        profile_seconds: for measuring each γ of a transformer.
        threads: of an engine. The other cores are for clients and server, as they are beside a GPU.
    """

    sizes: tuple[Size, ...]
    pretrained_on: str
    pretraining: Settings
    variation: Variation
    tasks: tuple[Training, ...]
    profile_seconds: float = 30.0
    threads: int = 1

    @property
    def base(self) -> Size:
        """The transformer whose tokens are adapted."""
        return next(size for size in self.sizes if size.name == BASE)

    def training(self, task: str) -> Settings:
        """How a task is trained."""
        return next(each.settings for each in self.tasks if each.task == task)


def _sizes(small: int, base: int, large: int) -> tuple[Size, ...]:
    """All three, each with its epochs.

    The base takes about 4 ms an image on a core: a server has to be kept busy by its engine, not by what surrounds it.
    """
    return (
        Size(SMALL, 96, 5, 3, small),
        Size(BASE, 192, 8, 6, base, gammas=None),
        Size(LARGE, 256, 8, 8, large),
    )


#: With real photographs: 20,000 of CIFAR-10 and 3,068 of clothing. For prompts 50 epochs are published, which take most
#: of a day here.
PHOTOGRAPHS = Recipe(
    sizes=_sizes(12, 8, 6),
    pretrained_on=CIFAR10,
    pretraining=Settings(batch=64, rate=0.001),
    variation=Variation(mirror=True, shift=4, seen=0.5),
    tasks=(
        Training(CIFAR10, Settings(epochs=1, head_epochs=20)),
        Training(CLOTHING, Settings(epochs=5, head_epochs=150, rate=0.02)),
        Training(DIGITS, Settings(epochs=6, head_epochs=200, rate=0.02)),
    ),
)
_TASK = Settings(epochs=6, head_epochs=200, rate=0.02)
#: Without: hand-written digits alone. Which digit it is, whether it is even, and which one it is behind noise.
DIGITS_ALONE = Recipe(
    sizes=_sizes(60, 40, 40),
    pretrained_on=DIGITS,
    pretraining=Settings(batch=64, rate=0.001),
    variation=Variation(shift=4, seen=0.5),
    tasks=tuple(Training(task, _TASK) for task in (DIGITS, PARITY, NOISY)),
)
