"""Configuration and weights of a vision transformer, as plain tensors with timm's names.

They are stored as `vit.json` and `vit.safetensors`, which `timm_export` writes from a timm model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field, ValidationError, model_validator
from safetensors.torch import load_file, save_file

from tidal.errors import InvalidArgument
from tidal.manifest import Strict
from tidal.otas.manifest import ImageConfig

CONFIG_FILE = "vit.json"
WEIGHTS_FILE = "vit.safetensors"

Activation = Literal["gelu", "gelu_tanh", "quick_gelu"]
Pool = Literal["token", "avg"]


class VitConfig(Strict):
    """Configuration of a vision transformer; see timm's `VisionTransformer` for its options."""

    architecture: str = Field(description="name of the source model")
    image: ImageConfig
    patch: tuple[int, int] = Field(description="height and width of a patch in pixels")
    width: int = Field(ge=1, description="width of a token")
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    inner: int = Field(ge=1, description="width of the hidden layer of the MLPs")
    class_token: bool = True
    registers: int = Field(0, ge=0)
    positions: Literal["all", "patches", "none"] = Field("all", description="tokens that have a position embedding")
    patch_bias: bool = True
    qkv_bias: bool = True
    linear_bias: bool = Field(True, description="whether the attention's projection and the MLP have biases")
    qk_norm: bool = False
    layer_scale: bool = False
    pre_norm: bool = Field(False, description="whether tokens are normalised before the first layer")
    final_norm: Literal["before pooling", "after pooling", "none"] = "before pooling"
    epsilon: float = Field(1e-6, gt=0, description="epsilon of the normalisations")
    activation: Activation = "gelu"
    pool: Pool = Field("token", description="features of the class token, or the mean over those of the patches")

    @model_validator(mode="after")
    def _check(self) -> VitConfig:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by {self.heads} heads")
        if self.pool == "token" and not self.class_token:
            raise ValueError("pooling by class token requires a class token; this model has none")
        if any(size % patch for size, patch in zip(self.image.shape[1:], self.patch, strict=True)):
            raise ValueError(f"an image of {self.image.shape[1:]} pixels is not divisible by patches of {self.patch}")
        return self

    @property
    def prefix(self) -> int:
        """Number of tokens before the patches: class token and registers."""
        return int(self.class_token) + self.registers

    @property
    def patches(self) -> int:
        """Number of patches of an image."""
        return (self.image.height // self.patch[0]) * (self.image.width // self.patch[1])

    @property
    def tokens(self) -> int:
        """Number of tokens of an image at the first layer."""
        return self.prefix + self.patches


@dataclass(frozen=True, slots=True)
class Vit:
    """A vision transformer without head.

    Attributes:
        config: Configuration of the transformer.
        tensors: Weights in float32 by timm's names.
    """

    config: VitConfig
    tensors: Mapping[str, torch.Tensor]

    @property
    def digest(self) -> str:
        """Hex SHA-256 over configuration and weights, by which tasks identify their base."""
        # Without defaults: an option that a later release adds does not change the digests of models without it.
        form = self.config.model_dump_json(exclude={"architecture"}, exclude_defaults=True)
        digest = hashlib.sha256(form.encode())
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().contiguous().numpy().data)
        return digest.hexdigest()


def write_vit(folder: Path, vit: Vit) -> None:
    """Write both files into an existing folder."""
    (folder / CONFIG_FILE).write_text(vit.config.model_dump_json(indent=1) + "\n", encoding="utf-8")
    save_file({name: tensor.detach().contiguous() for name, tensor in vit.tensors.items()}, folder / WEIGHTS_FILE)


def read_vit(folder: Path) -> Vit:
    """Read both files.

    Raises:
        InvalidArgument: A file is missing or not valid.
    """
    try:
        config = VitConfig.model_validate_json((folder / CONFIG_FILE).read_bytes())
        return Vit(config, load_file(folder / WEIGHTS_FILE))
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"])) or "file"
        raise InvalidArgument(f"{folder / CONFIG_FILE} is not valid: {place}: {problem['msg']}") from None
    except Exception as error:  # safetensors raises its own errors and those of the file system
        raise InvalidArgument(f"{folder} contains no readable vision transformer: {error}") from None
