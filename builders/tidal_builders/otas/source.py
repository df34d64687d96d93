"""A source model as plain tensors, with what it makes of some images."""

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
    """Write a model's form and weights into `folder`, and what timm makes of random images if it is timm's.

    Args:
        source: in timm's format, or with the two files of `tidal_builders.otas.vit`.
        folder: an existing one.

    Raises:
        InvalidArgument: the source is neither, or of a form that is not supported.
        NotFound: it is timm's, and timm is not installed.
    """
    if (source / CONFIG_FILE).is_file():
        shutil.copy(source / CONFIG_FILE, folder)
        shutil.copy(source / WEIGHTS_FILE, folder)
    else:
        export_timm_model(source, folder)


def reference(folder: Path) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Images and the source model's features of them, where a model of timm's was exported."""
    if not (folder / REFERENCE_FILE).is_file():
        return None
    tensors = load_file(folder / REFERENCE_FILE)
    return tensors[PIXELS], tensors[FEATURES]
