"""Reads JSON and safetensors files of untrusted folders, within limits; pickles are never read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from tidal.errors import InvalidArgument
from tidal.tasks.stored import FloatArray
from tidal.tensor_file import check_tensor_file, read_bounded

if TYPE_CHECKING:  # slow to import, and plans of builds read only JSON
    import torch

_MAX_JSON_BYTES = 8 << 20
# For adapters: rank 64 in all layers of a decoder with 8 billion parameters has 0.7 GB.
_MAX_WEIGHTS_BYTES = 4 << 30
# For the tokenizer, the largest JSON file of a checkpoint.
_MAX_CHECKPOINT_JSON_BYTES = 64 << 20
_MAX_LAYERS = 1_000
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        InvalidArgument: The file cannot be read, or does not contain a JSON object.
    """
    content = _parsed(path, _MAX_JSON_BYTES)
    if not isinstance(content, dict):
        raise InvalidArgument(f"{path} does not contain a JSON object")
    return content


def _parsed(path: Path, most: int) -> Any:
    try:
        return json.loads(read_bounded(path, most))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} is not valid JSON: {error}") from None


def read_weights(folder: Path, name: str, pickled: str, how: str) -> dict[str, FloatArray]:
    """Read a folder's safetensors file.

    Args:
        folder: Folder of the source.
        name: Name of the file.
        pickled: Name of the file's pickled form, which is never read, because loading a pickle can run code.
        how: Way to save safetensors instead, for the error.

    Returns:
        float32 arrays by name.

    Raises:
        InvalidArgument: The file is missing or damaged.
    """
    path = folder / name
    if not path.is_file():
        if (folder / pickled).is_file():
            raise InvalidArgument(
                f"{folder} has pickled weights ({pickled}), which are not read, because they can run code: {how}"
            )
        raise InvalidArgument(f"{path} is {'not a regular file' if path.exists() else 'missing'}")
    check_tensor_file(path, _MAX_WEIGHTS_BYTES)
    try:
        with safe_open(path, "pt") as file:
            return {key: array_of(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None


def check_checkpoint(folder: Path) -> None:
    """Check the files of a checkpoint's folder against limits before transformers reads them.

    Args:
        folder: Folder of the checkpoint.

    Raises:
        InvalidArgument: A file is not a regular file, is too long or nested too deep, names a file in another folder,
            or configures too many layers, which would be created before a weight is read.
    """
    for path in sorted(folder.glob("*.json")):
        content = _parsed(path, _MAX_CHECKPOINT_JSON_BYTES)
        if path.name.endswith(".index.json"):
            _check_index(path, content)
    config = read_json(folder / "config.json")
    for name in _LAYERS:
        layers = config.get(name)
        if isinstance(layers, int) and layers > _MAX_LAYERS:
            raise InvalidArgument(f"{folder / 'config.json'} has {name} {layers}; accepted are at most {_MAX_LAYERS}")
    for path in folder.glob("*.safetensors"):
        check_tensor_file(path)


def _check_index(path: Path, content: Any) -> None:
    files = content.get("weight_map") if isinstance(content, dict) else None
    for name in set(files.values()) if isinstance(files, dict) else ():
        if not isinstance(name, str) or Path(name).name != name:
            raise InvalidArgument(
                f"{path} names the file '{str(name)[:120]}'; accepted are names of files in the same folder"
            )


def array_of(tensor: torch.Tensor) -> FloatArray:
    """Copy a tensor to a float32 array."""
    return np.array(tensor.detach().float().cpu().numpy())


def layer_path(name: str, known: Mapping[str, object]) -> str | None:
    """The known path that a name ends with.

    Args:
        name: Name of a tensor or module, which may begin with names of enclosing modules.
        known: Known paths.

    Returns:
        The path; None if the name ends with no known one.
    """
    while name:
        if name in known:
            return name
        _, _, name = name.partition(".")
    return None
