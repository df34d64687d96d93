"""Write a timm vision transformer as plain tensors, with its features of random images.

Run as `python -m tidal_builders.otas.timm_export SOURCE FOLDER` in a separate process: timm needs torchvision, and a
torchvision that was not built for the installed torch breaks other libraries that import it; see `timm_child`.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from tidal.errors import InvalidArgument
from tidal.otas.manifest import FEATURES, PIXELS, ImageConfig
from tidal_builders.otas.vit import Vit, VitConfig, write_vit

REFERENCE_FILE = "reference.safetensors"
_IMAGES = 8
_HEAD = ("head.",)
_LAYER = r"blocks\.\d+\."
_KNOWN = re.compile(
    r"cls_token|reg_token|pos_embed|patch_embed\.proj\.(weight|bias)|(norm|norm_pre|fc_norm)\.(weight|bias)|"
    rf"{_LAYER}(norm1|norm2|attn\.(qkv|proj|q_norm|k_norm)|mlp\.fc[12])\.(weight|bias)|{_LAYER}ls[12]\.gamma"
)
_ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "GeluTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}


def export_timm(source: Path, folder: Path) -> None:
    """Write `vit.json`, `vit.safetensors` and `reference.safetensors` of a timm model.

    Args:
        source: Folder in timm's Hugging Face format, with `config.json` and `model.safetensors`.
        folder: Existing folder to write to.

    Raises:
        InvalidArgument: The folder contains no vision transformer of timm, or its architecture is not supported.
    """
    if not (source / "model.safetensors").is_file():
        raise InvalidArgument(
            f"{source} has no model.safetensors; pickled weights are not read, because they can run code"
        )
    prepare_torchvision()
    import timm
    from timm.data import resolve_data_config
    from timm.models.vision_transformer import VisionTransformer

    try:
        model = timm.create_model(f"local-dir:{source}", pretrained=True).eval().float()
    except Exception as error:  # timm raises exceptions of any type
        raise InvalidArgument(f"{source} contains no timm model: {' '.join(str(error).split())[:300]}") from None
    if type(model) is not VisionTransformer:
        raise InvalidArgument(f"{source} contains a {type(model).__name__}; accepted: timm's vit_* (VisionTransformer)")
    tensors = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(_HEAD)}
    config = _config(model, tensors, resolve_data_config({}, model=model), source)
    write_vit(folder, Vit(config, tensors))
    pixels = torch.randn(_IMAGES, *config.image.shape, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        features = model.forward_head(model.forward_features(pixels), pre_logits=True)
    save_file({PIXELS: pixels, FEATURES: features.contiguous()}, folder / REFERENCE_FILE)


def _config(model: Any, tensors: dict[str, torch.Tensor], data: dict[str, Any], source: Path) -> VitConfig:
    block, patch = model.blocks[0], model.patch_embed
    activation = _ACTIVATIONS.get(type(block.mlp.act).__name__) if hasattr(block.mlp, "act") else None
    if activation == "gelu" and getattr(block.mlp.act, "approximate", "none") == "tanh":
        activation = "gelu_tanh"
    unsupported = [
        *(f"tensor {name}" for name in tensors if not _KNOWN.fullmatch(name)),
        *([] if activation else [f"activation {type(getattr(block.mlp, 'act', block.mlp)).__name__}"]),
        *([] if model.global_pool in ("token", "avg") else [f"pooling '{model.global_pool}'"]),
        *(["a mean over class and register tokens"] if model.pool_include_prefix else []),
        *([] if patch.img_size else ["images of any size"]),
        *([] if isinstance(block.norm1, torch.nn.LayerNorm) else [f"normalisation {type(block.norm1).__name__}"]),
    ]
    if unsupported:
        raise InvalidArgument(f"{source} is not supported: {', '.join(unsupported[:4])}")
    channels = patch.proj.in_channels
    height, width = patch.img_size
    positions = "none" if model.pos_embed is None else "patches" if model.no_embed_class else "all"
    after = "fc_norm.weight" in tensors
    try:
        return VitConfig(
            architecture=model.pretrained_cfg.get("architecture") or type(model).__name__,
            image=ImageConfig(
                channels=channels,
                height=height,
                width=width,
                crop_pct=data["crop_pct"],
                crop_mode=data["crop_mode"],
                interpolation=data["interpolation"],
                mean=data["mean"][:channels],
                std=data["std"][:channels],
            ),
            patch=tuple(patch.patch_size),
            width=model.embed_dim,
            layers=len(model.blocks),
            heads=block.attn.num_heads,
            inner=block.mlp.fc1.out_features,
            class_token=model.has_class_token,
            registers=model.num_reg_tokens,
            positions=positions,
            patch_bias="patch_embed.proj.bias" in tensors,
            qkv_bias="blocks.0.attn.qkv.bias" in tensors,
            linear_bias="blocks.0.mlp.fc1.bias" in tensors,
            qk_norm="blocks.0.attn.q_norm.weight" in tensors,
            layer_scale="blocks.0.ls1.gamma" in tensors,
            pre_norm="norm_pre.weight" in tensors,
            final_norm="after pooling" if after else "before pooling" if "norm.weight" in tensors else "none",
            epsilon=block.norm1.eps,
            activation=activation,
            pool=model.global_pool,
        )
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        raise InvalidArgument(f"{source} is not supported: {field}: {problem['msg']}") from None


def prepare_torchvision() -> None:
    """Declare the operators that importing torchvision requires, if its own library does not fit the installed torch.

    timm's vision transformers do not call them.
    """
    if _LIBRARIES:
        return
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        raise InvalidArgument("torchvision, which timm needs, is not installed")
    operators: Any = torch.ops
    libraries: Any = torch.library
    try:
        operators.load_library(str(next(Path(found.origin).parent.glob("_C*.so"))))
    except (OSError, StopIteration):
        library = libraries.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)


# Declarations exist as long as their library object.
_LIBRARIES: list[Any] = []


def main(arguments: list[str]) -> int:
    """Run the export; a refusal is one line on standard error and exit code 2."""
    source, folder = map(Path, arguments)
    try:
        export_timm(source, folder)
    except InvalidArgument as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
