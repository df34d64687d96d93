"""Export a source model to plain tensors, with its features of some images as a reference."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from tidal.otas.manifest import FEATURES, PIXELS
from tidal_builders.otas.timm_child import export_timm_model
from tidal_builders.otas.timm_export import REFERENCE_FILE
from tidal_builders.otas.vit import CONFIG_FILE, WEIGHTS_FILE


def export_source(source: Path, folder: Path) -> None:
    """Write a model's configuration and weights, and timm's features of random images if it is a timm model.

    Args:
        source: Folder in timm's format, or with the two files of `tidal_builders.otas.vit`.
        folder: Existing folder to write to.

    Raises:
        InvalidArgument: The source has neither format, or its architecture is not supported.
        NotFound: It is a timm model, and timm is not installed.
    """
    if (source / CONFIG_FILE).is_file():
        shutil.copy(source / CONFIG_FILE, folder)
        shutil.copy(source / WEIGHTS_FILE, folder)
    else:
        export_timm_model(source, folder)


def reference(folder: Path) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return images and the source model's features of them; None if it is not a timm model."""
    if not (folder / REFERENCE_FILE).is_file():
        return None
    tensors = load_file(folder / REFERENCE_FILE)
    return tensors[PIXELS], tensors[FEATURES]
