"""Creates small timm models of many forms and exports each; runs in the process that can import timm.

`python timm_models.py FOLDER` writes `FOLDER/<form>/source`, as timm saves models, and `FOLDER/<form>/exported`; what
the export refuses leaves its reason in `FOLDER/<form>/refused`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from tidal.errors import InvalidArgument
from tidal_builders.otas.timm_export import export_timm, prepare_torchvision

SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("vit_tiny_patch16_224", {}),
    "grey": ("vit_tiny_patch16_224", {"in_chans": 1, "img_size": (16, 8)}),
    "registers": ("vit_tiny_patch16_224", {"reg_tokens": 2, "no_embed_class": True, "init_values": 0.1}),
    "mean": ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg", "qkv_bias": False}),
    "clip": ("vit_base_patch32_clip_quickgelu_224", {"qk_norm": True}),
    "mean before": ("vit_tiny_patch16_224", {"global_pool": "avg", "fc_norm": False, "pos_embed": "none"}),
    "latent pooling": ("vit_tiny_patch16_224", {"global_pool": "map", "class_token": False}),
    "gated": ("vit_tiny_patch16_224", {"scale_attn_norm": True}),
    "convolutions": ("lcnet_035", {}),
}


def make(folder: Path) -> None:
    prepare_torchvision()
    import timm
    from timm.models import save_for_hf

    for form, (architecture, changed) in FORMS.items():
        arguments = SMALL | changed if architecture != "lcnet_035" else {}
        torch.manual_seed(0)
        model = timm.create_model(architecture, **arguments)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))  # none of them 0 or 1
        save_for_hf(model, folder / form / "source", model_args=arguments, safe_serialization=True)
        (folder / form / "exported").mkdir()
        try:
            export_timm(folder / form / "source", folder / form / "exported")
        except InvalidArgument as error:
            (folder / form / "refused").write_text(str(error))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
