"""Files of other people's folders, read as data: JSON and safetensors, never pickles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from tidal.errors import InvalidArgument
from tidal.tasks.stored import FloatArray
from tidal.tensor_file import read_bounded

if TYPE_CHECKING:  # slow to import, and plans of builds read nothing but JSON
    import torch

_MOST_JSON_BYTES = 8 << 20


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a file.

    Raises:
        InvalidArgument: it cannot be read, or holds none.
    """
    try:
        content = json.loads(read_bounded(path, _MOST_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise InvalidArgument(f"{path} holds no JSON object")
    return content


def read_weights(folder: Path, name: str, pickled: str, how: str) -> dict[str, FloatArray]:
    """The tensors of a folder's safetensors file as float32, by name.

    Args:
        folder: of the source.
        name: of the file.
        pickled: what its pickled form is called, which is never read: loading a pickle runs what is in it.
        how: how to save the one instead of the other.

    Raises:
        InvalidArgument: the file is missing or damaged.
    """
    path = folder / name
    if not path.is_file():
        if (folder / pickled).is_file():
            raise InvalidArgument(
                f"{folder} has its weights pickled ({pickled}), which are not read, for they can run code: {how}"
            )
        raise InvalidArgument(f"{path} is missing")
    try:
        with safe_open(path, "pt") as file:
            return {key: array_of(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None


def array_of(tensor: torch.Tensor) -> FloatArray:
    """A tensor's values as float32 of their own memory."""
    return np.array(tensor.detach().float().cpu().numpy())


def layer_path(name: str, known: Mapping[str, object]) -> str | None:
    """The known path that a name ends in, after the names of the models around it; None where there is none."""
    while name:
        if name in known:
            return name
        _, _, name = name.partition(".")
    return None
