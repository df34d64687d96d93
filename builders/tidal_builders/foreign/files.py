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
from tidal.tensor_file import check_tensor_file, read_bounded

if TYPE_CHECKING:  # slow to import, and plans of builds read nothing but JSON
    import torch

_MOST_JSON_BYTES = 8 << 20
# Of an adapter: rank 64 in all layers of a decoder of 8 billion parameters takes 0.7 GB.
_MOST_WEIGHTS_BYTES = 4 << 30
# Of a checkpoint's tokenizer, the largest JSON file there is in one.
_MOST_CHECKPOINT_JSON_BYTES = 64 << 20
_MOST_LAYERS = 1_000
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a file.

    Raises:
        InvalidArgument: it cannot be read, or holds none.
    """
    content = _parsed(path, _MOST_JSON_BYTES)
    if not isinstance(content, dict):
        raise InvalidArgument(f"{path} holds no JSON object")
    return content


def _parsed(path: Path, most: int) -> Any:
    try:
        return json.loads(read_bounded(path, most))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} is not valid JSON: {error}") from None


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
        raise InvalidArgument(f"{path} is {'not a regular file' if path.exists() else 'missing'}")
    check_tensor_file(path, _MOST_WEIGHTS_BYTES)
    try:
        with safe_open(path, "pt") as file:
            return {key: array_of(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None


def check_checkpoint(folder: Path) -> None:
    """Hold the files of a checkpoint's folder to limits before transformers reads them.

    Raises:
        InvalidArgument: one is no regular file, too long or nested too deep, names a file elsewhere, or a config of
            very many layers, which would be built before a weight is read.
    """
    for path in sorted(folder.glob("*.json")):
        content = _parsed(path, _MOST_CHECKPOINT_JSON_BYTES)
        if path.name.endswith(".index.json"):
            _check_index(path, content)
    config = read_json(folder / "config.json")
    for name in _LAYERS:
        layers = config.get(name)
        if isinstance(layers, int) and layers > _MOST_LAYERS:
            raise InvalidArgument(f"{folder / 'config.json'} has {name} {layers}; accepted are up to {_MOST_LAYERS}")
    for path in folder.glob("*.safetensors"):
        check_tensor_file(path)


def _check_index(path: Path, content: Any) -> None:
    files = content.get("weight_map") if isinstance(content, dict) else None
    for name in set(files.values()) if isinstance(files, dict) else ():
        if not isinstance(name, str) or Path(name).name != name:
            raise InvalidArgument(f"{path} names the file '{str(name)[:120]}'; accepted are names of files beside it")


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
