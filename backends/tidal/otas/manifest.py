"""Manifest of a published vision transformer: image preparation, engines by γ, and their latencies."""

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


EngineChoice = Literal["dynamic", "static", "both"]


class ImageConfig(Strict):
    """Image preparation of the source model, from its `pretrained_cfg`.

    An image is converted to the model's channels (1: grey, 3: RGB) and scaled with Pillow's filter `interpolation`:
    `center` scales its shorter side to `scaled` and crops `height` by `width` from the centre; `squash` scales both
    sides and crops the same. Values are then divided by 255, and normalised by `mean` and `std` of each channel.
    """

    channels: Literal[1, 3]
    height: int = Field(ge=1)
    width: int = Field(ge=1)
    crop_pct: float = Field(gt=0, le=1, description="share of the scaled image that the crop keeps")
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
        """Height and width before the crop, in pixels."""
        return int(self.height / self.crop_pct), int(self.width / self.crop_pct)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an image's pixel values: channels, height, width."""
        return self.channels, self.height, self.width


class OtasEngine(Strict):
    """One engine: a file that is opened for one γ or for several above 0, and for one or any number of images."""

    gammas: tuple[int, ...] = Field(min_length=1, description="γ that the engine runs, ascending")
    file: str = Field(description="engine file; several engines may share one")
    batch: int | None = Field(ge=1, description="number of images per batch; None: any from 1 to `max_batch`")

    @model_validator(mode="after")
    def _check(self) -> OtasEngine:
        if list(self.gammas) != sorted(set(self.gammas)) or (len(self.gammas) > 1 and self.gammas[0] < 1):
            raise ValueError(f"an engine runs one γ, or several above 0 that ascend, got {self.gammas}")
        return self


class GammaVerification(Strict):
    """Difference between the engines of a γ and their reference, on random images and prompts.

    At γ = 0 the reference is the unmodified source model if it is from timm; else the same weights in float32 on torch.
    """

    gamma: int
    samples: int = Field(ge=1)
    undecided: int = Field(
        0, ge=0, description="images left out because two similarities are equal within rounding, so either may merge"
    )
    max_abs_error: float = Field(ge=0, description="largest absolute difference of a feature")
    tolerance: float = Field(gt=0)


class OtasTrial(Strict):
    """A choice of engines for a γ that the builder measured on this device."""

    gamma: int
    form: EngineChoice = Field(description="one engine for all batch sizes, engines for some sizes each, or both")
    image_ms: float = Field(gt=0, description="milliseconds per image, mean over batch sizes")
    verdict: Literal["chosen", "slower"]


class OtasForm(Strict):
    """Shapes of a model: its images, prompts, batches and features."""

    image: ImageConfig
    width: int = Field(ge=1, description="width of the features and of a token")
    layers: int = Field(ge=1)
    tokens: int = Field(ge=2, description="tokens of an image at the first layer, including class and register tokens")
    accumulate: bool = Field(
        description="whether a layer's prompts stay for later layers, or are replaced there (VPT-deep)"
    )
    gammas: tuple[int, ...] = Field(min_length=1, description="token changes per layer, ascending, with 0")
    max_batch: int = Field(ge=1, description="maximum number of images in a batch")

    def prompt_shape(self, gamma: int) -> tuple[int, int, int] | None:
        """Return the shape of a task's prompts at γ: layers, prompts, width; None if γ adds none."""
        return (self.layers, gamma, self.width) if gamma > 0 else None

    def shapes(self, gammas: tuple[int, ...], batch: int | None) -> dict[str, tuple[Dim, ...]]:
        """Return the input shapes of an engine.

        Args:
            gammas: γ that the engine runs, ascending.
            batch: Number of images per batch; None for any from 1 to `max_batch`.
        """
        rows: Dim = (1, self.max_batch) if batch is None else batch
        shapes: dict[str, tuple[Dim, ...]] = {PIXELS: (rows, *self.image.shape)}
        least, most = gammas[0], gammas[-1]
        if least > 0:
            shapes[PROMPTS] = (rows, self.layers, least if least == most else (least, most), self.width)
        return shapes


class OtasManifest(Published, OtasForm):
    """A published version of a vision transformer that serves tasks, which are stored in the model's folder.

    Engines take `pixel_values` FP32 [batch, channels, height, width] and, for γ above 0, `prompts` FP32 [batch,
    layers, γ, width]; they return `features` FP32 [batch, width], after the final normalisation and pooling. Heads of
    tasks are applied to the features outside the engine, so a batch may mix tasks.
    """

    kind: Literal["otas"]
    base: str = Field(
        pattern=r"^[0-9a-f]{64}$", description="digest of the transformer's weights, which tasks refer to"
    )
    threads: int = Field(ge=1, description="number of CPU threads of an engine")
    engines: tuple[OtasEngine, ...] = Field(min_length=1)
    verification: tuple[GammaVerification, ...] = Field(description="one per γ, in the order of `gammas`")
    trials: tuple[OtasTrial, ...] = ()
    profile: GammaLatency

    @model_validator(mode="after")
    def _check(self) -> OtasManifest:
        if list(self.gammas) != sorted(set(self.gammas)) or 0 not in self.gammas:
            raise ValueError(f"gammas must ascend and include 0, got {self.gammas}")
        for gamma in self.gammas:
            batches = [engine.batch for engine in self.engines_of(gamma)]
            if None not in batches and 1 not in batches:
                raise ValueError(f"γ {gamma} has no engine that runs one image")
            if len(set(batches)) != len(batches) or any(batch and batch > self.max_batch for batch in batches):
                raise ValueError(f"engines of γ {gamma} must be of different sizes up to {self.max_batch}")
        if not {gamma for engine in self.engines for gamma in engine.gammas} <= set(self.gammas):
            raise ValueError(f"engines must run only γ of gammas, {self.gammas}")
        if [each.gamma for each in self.verification] != list(self.gammas):
            raise ValueError("verification must have one entry per γ, in the order of gammas")
        if self.profile.gammas != self.gammas or self.profile.max_batch != self.max_batch:
            raise ValueError("the profile must cover gammas, and batches up to max_batch")
        return self

    def engines_of(self, gamma: int) -> tuple[OtasEngine, ...]:
        """Return the engines that run a γ."""
        return tuple(engine for engine in self.engines if gamma in engine.gammas)

    def artifact(self, engine: OtasEngine, version_dir: Path) -> Artifact:
        """Return an engine's file with the shapes to open it with."""
        shapes = self.shapes(engine.gammas, engine.batch)
        return Artifact(self.engine, version_dir / engine.file, self.precision, shapes, self.device.kind)


def load_otas_manifest(version_dir: Path) -> OtasManifest:
    """Read and validate `manifest.json` of a version of a vision transformer.

    Raises:
        InvalidArgument: The file is missing or not valid, or has a field that this release does not know.
    """
    return read_manifest(version_dir, OtasManifest)
