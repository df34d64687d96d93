"""What a published vision transformer holds: how images become pixels, an engine for every γ, and what each costs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from tidal.engines.base import Artifact, Dim
from tidal.manifest import Published, Strict, read_manifest
from tidal.otas.profile import GammaLatency

ENGINE_FOLDER = "engines"
PIXELS, PROMPTS, FEATURES = "pixel_values", "prompts", "features"

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]


Way = Literal["dynamic", "static", "both"]


class ImageConfig(Strict):
    """How an image becomes the source model's pixel values, as its own `pretrained_cfg` says.

    An image is converted to as many channels as the model has (1: grey, 3: RGB) and scaled to `scaled` with Pillow's
    filter of that name: `center` brings its shorter side to that length and cuts `height` by `width` out of the
    middle; `squash` brings both sides to it and cuts the same. Values are then divided by 255, and normalised by
    `mean` and `std` of each channel.
    """

    channels: Literal[1, 3]
    height: int = Field(ge=1)
    width: int = Field(ge=1)
    crop_pct: float = Field(gt=0, le=1, description="share of the scaled image that the cut takes")
    crop_mode: Literal["center", "squash"]
    interpolation: Interpolation
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @model_validator(mode="after")
    def _check(self) -> ImageConfig:
        if len(self.mean) != self.channels or len(self.std) != self.channels or min(self.std) <= 0:
            raise ValueError(f"mean and std must have {self.channels} values each, those of std above 0")
        return self

    @property
    def scaled(self) -> tuple[int, int]:
        """Height and width before the cut, in pixels."""
        return int(self.height / self.crop_pct), int(self.width / self.crop_pct)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image's pixel values: channels, height, width."""
        return self.channels, self.height, self.width


class OtasEngine(Strict):
    """One engine: a file opened for one γ, or for several above 0, whose prompts are one input of any such number; and
    for either one number of images or up to `max_batch` of them."""

    gammas: tuple[int, ...] = Field(min_length=1, description="what it runs, ascending")
    file: str = Field(description="engine file; several engines may share one")
    batch: int | None = Field(ge=1, description="images that it runs, always as many; None: 1 to `max_batch`")

    @model_validator(mode="after")
    def _check(self) -> OtasEngine:
        if list(self.gammas) != sorted(set(self.gammas)) or (len(self.gammas) > 1 and self.gammas[0] < 1):
            raise ValueError(f"an engine runs one γ, or several above 0 that ascend, got {self.gammas}")
        return self


class GammaVerification(Strict):
    """How far the engines of a γ are from their reference, on random images and prompts.

    At γ = 0 the reference is the unmodified source model if that is timm's; else the same weights in float32 on torch.
    """

    gamma: int
    samples: int = Field(ge=1)
    undecided: int = Field(
        0, ge=0, description="images left out, where two similarities are equal but for rounding, so either may merge"
    )
    max_abs_error: float = Field(ge=0, description="largest difference of any component of the features")
    tolerance: float = Field(gt=0)


class OtasTrial(Strict):
    """A way to run a γ that the builder measured on this device before it chose one."""

    gamma: int
    form: Way = Field(description="one engine for all batch sizes, one for each of some, or both")
    image_ms: float = Field(gt=0, description="milliseconds an image, mean over batch sizes")
    verdict: Literal["chosen", "slower"]


class OtasForm(Strict):
    """What a batch may be, and what comes of it."""

    image: ImageConfig
    width: int = Field(ge=1, description="of the features, and of a token")
    layers: int = Field(ge=1)
    tokens: int = Field(ge=2, description="of an image at the first layer, class and register tokens included")
    accumulate: bool = Field(
        description="whether a layer's prompts stay for the layers behind it, or are replaced there (VPT-deep)"
    )
    gammas: tuple[int, ...] = Field(min_length=1, description="token changes a layer, ascending, with 0")
    max_batch: int = Field(ge=1, description="images in a batch at most")

    def prompt_shape(self, gamma: int) -> tuple[int, int, int] | None:
        """Of a task's prompts at γ: layers, prompts, width; None where γ adds none."""
        return (self.layers, gamma, self.width) if gamma > 0 else None

    def shapes(self, gammas: tuple[int, ...], batch: int | None) -> dict[str, tuple[Dim, ...]]:
        """Inputs of an engine for γ, ascending, and for so many images, or for 1 to `max_batch` of them."""
        rows: Dim = (1, self.max_batch) if batch is None else batch
        shapes: dict[str, tuple[Dim, ...]] = {PIXELS: (rows, *self.image.shape)}
        least, most = gammas[0], gammas[-1]
        if least > 0:
            shapes[PROMPTS] = (rows, self.layers, least if least == most else (least, most), self.width)
        return shapes


class OtasManifest(Published, OtasForm):
    """A published version of a vision transformer that serves tasks; the tasks lie beside the versions.

    Engines take `pixel_values` FP32 [batch, channels, height, width] and, for γ above 0, `prompts` FP32 [batch,
    layers, γ, width]; they give `features` FP32 [batch, width], after the final normalisation and pooling. A task's
    head is applied to a row of them outside the engine, so a batch may mix tasks.
    """

    kind: Literal["otas"]
    base: str = Field(pattern=r"^[0-9a-f]{64}$", description="digest of the transformer's weights: what tasks name")
    threads: int = Field(ge=1, description="CPU threads of an engine")
    engines: tuple[OtasEngine, ...] = Field(min_length=1)
    verification: tuple[GammaVerification, ...] = Field(description="one a γ, as `gammas`")
    trials: tuple[OtasTrial, ...] = ()
    profile: GammaLatency

    @model_validator(mode="after")
    def _check(self) -> OtasManifest:
        if list(self.gammas) != sorted(set(self.gammas)) or 0 not in self.gammas:
            raise ValueError(f"gammas must ascend and hold 0, got {self.gammas}")
        for gamma in self.gammas:
            batches = [engine.batch for engine in self.engines_of(gamma)]
            if None not in batches and 1 not in batches:
                raise ValueError(f"γ {gamma} has no engine that runs one image")
            if len(set(batches)) != len(batches) or any(batch and batch > self.max_batch for batch in batches):
                raise ValueError(f"engines of γ {gamma} must be of different sizes up to {self.max_batch}")
        if not {gamma for engine in self.engines for gamma in engine.gammas} <= set(self.gammas):
            raise ValueError(f"engines must be of the γ in gammas, {self.gammas}")
        if [each.gamma for each in self.verification] != list(self.gammas):
            raise ValueError("verification must have an entry a γ, as gammas")
        if self.profile.gammas != self.gammas or self.profile.max_batch != self.max_batch:
            raise ValueError("the profile must cover gammas, and batches to max_batch")
        return self

    def engines_of(self, gamma: int) -> tuple[OtasEngine, ...]:
        """The engines that run γ."""
        return tuple(engine for engine in self.engines if gamma in engine.gammas)

    def artifact(self, engine: OtasEngine, version_dir: Path) -> Artifact:
        """An engine's file with the shapes to open it with."""
        shapes = self.shapes(engine.gammas, engine.batch)
        return Artifact(self.engine, version_dir / engine.file, self.precision, shapes, self.device.kind)


def load_otas_manifest(version_dir: Path) -> OtasManifest:
    """Read and validate `manifest.json` of a version of a vision transformer.

    Raises:
        InvalidArgument: the file is missing, is not valid, or names a field that this release does not know.
    """
    return read_manifest(version_dir, OtasManifest)
