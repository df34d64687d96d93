"""The frozen encoder's layers in a published version, and the digest by which tasks name their base.

`pets.json` describes the base; `base.safetensors` holds the layers that tasks may change. Of the encoder's other
weights (its embeddings) only digests are stored, which is enough to detect that a fine-tuned model changed them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, ValidationError

from tidal.errors import InvalidArgument
from tidal.manifest import Strict
from tidal.pets.terms import BaseLayers, FloatArray, LinearLayer, NormLayer
from tidal.tasks.digests import base_digest, tensor_digest
from tidal.tensor_file import Array, map_tensors, pack_tensors, read_bounded

BASE_FILE = "pets.json"
LAYERS_FILE = "base.safetensors"
_MAX_JSON_BYTES = 4 << 20


class BaseInfo(Strict):
    """`pets.json`: what identifies a frozen encoder."""

    format: Literal[1] = 1
    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 over all weights of the encoder")
    width: int = Field(ge=1, description="size of the pooled vector")
    frozen: dict[str, str] = Field(description="digests of the weights that tasks cannot change, by name")


def make_base_layers(
    linear: Mapping[str, LinearLayer], norm: Mapping[str, NormLayer], frozen: Mapping[str, Array], width: int
) -> tuple[BaseLayers, BaseInfo]:
    """Make the layers of an encoder with its digest, and the content of `pets.json`.

    Args:
        linear: Linear layers by path; a layer without a bias has one of zeros.
        norm: Normalisations by path.
        frozen: Every other weight by name, of any shape.
        width: Size of the pooled vector.
    """
    digests = {name: tensor_digest(array) for name, array in _named(linear, norm).items()}
    others = {name: tensor_digest(array) for name, array in frozen.items()}
    digest = base_digest({**digests, **others})
    return BaseLayers(digest, width, linear, norm), BaseInfo(digest=digest, width=width, frozen=others)


def write_base_layers(version_dir: Path, layers: BaseLayers, info: BaseInfo) -> tuple[str, str]:
    """Write both files into the staging folder of a version.

    Args:
        version_dir: Staging folder of the version.
        layers: Layers of the base.
        info: Content of `pets.json`.

    Returns:
        Names of the files, for the manifest's file records.
    """
    (version_dir / LAYERS_FILE).write_bytes(pack_tensors(_named(layers.linear, layers.norm)))
    (version_dir / BASE_FILE).write_text(info.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return BASE_FILE, LAYERS_FILE


def load_base_info(version_dir: Path) -> BaseInfo:
    """Read `pets.json`.

    Args:
        version_dir: Folder of the published version.

    Raises:
        InvalidArgument: The file is missing or not valid: the version does not belong to a model with tasks.
    """
    path = version_dir / BASE_FILE
    if not path.is_file():
        raise InvalidArgument(f"{path} is missing: this is not a version of a model that serves tasks")
    try:
        return BaseInfo.model_validate_json(read_bounded(path, _MAX_JSON_BYTES))
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"])) or "file"
        raise InvalidArgument(f"{path} is not valid: {place}: {problem['msg']}") from None


def load_base_layers(version_dir: Path) -> BaseLayers:
    """Map the layers of a published base into memory: pages that nobody reads take none.

    The file's format is checked, its digest is not: `Version.check_files` checks a version's files.

    Args:
        version_dir: Folder of the published version.

    Raises:
        InvalidArgument: A file is missing or not valid.
    """
    info = load_base_info(version_dir)
    path = version_dir / LAYERS_FILE
    tensors = map_tensors(path)
    linear: dict[str, LinearLayer] = {}
    norm: dict[str, NormLayer] = {}
    for name, weight in tensors.items():
        layer, _, part = name.rpartition(".")
        if part != "weight":
            continue
        bias = tensors.get(f"{layer}.bias")
        if bias is None or weight.ndim not in (1, 2) or bias.shape != weight.shape[:1] or weight.dtype != np.float32:
            raise InvalidArgument(f"{path}: layer '{layer}' has no float32 weight and bias of matching shapes")
        if weight.ndim == 2:
            linear[layer] = LinearLayer(weight, bias)
        else:
            norm[layer] = NormLayer(weight, bias)
    return BaseLayers(info.digest, info.width, linear, norm)


def _named(linear: Mapping[str, LinearLayer], norm: Mapping[str, NormLayer]) -> dict[str, FloatArray]:
    named: dict[str, FloatArray] = {}
    layers: dict[str, LinearLayer | NormLayer] = {**linear, **norm}
    for path, layer in layers.items():
        named[f"{path}.weight"] = layer.weight
        named[f"{path}.bias"] = layer.bias
    return named
