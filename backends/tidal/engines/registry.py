"""Which engine kinds this machine has, and the one way to open an engine of any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy.typing as npt

from tidal.device import library_version
from tidal.engines.base import Artifact, Dim, Engine, EngineKind, Precision
from tidal.errors import Unsupported

if TYPE_CHECKING:
    import torch

# Kind to (Python module that must be importable, distribution whose version is recorded, extra that installs it).
_LIBRARIES: dict[EngineKind, tuple[str, str, str]] = {
    "openvino": ("openvino", "openvino", "serve"),
    "torch": ("torch", "torch", "build"),
    "tensorrt": ("tensorrt", "tensorrt", "tensorrt"),
}


def available_kinds() -> tuple[EngineKind, ...]:
    """Engine kinds whose library is installed here (found, not imported) and which Tidal implements."""
    return tuple(
        kind
        for kind in get_args(EngineKind)
        if find_spec(_LIBRARIES[kind][0]) is not None and find_spec(f"tidal.engines.{kind}") is not None
    )


def engine_version(kind: EngineKind) -> str | None:
    """Installed version of the kind's library, or None."""
    return library_version(_LIBRARIES[kind][1])


def open_engines(artifact: Artifact, *, contexts: int = 1, threads: int = 1) -> tuple[Engine, ...]:
    """Open a compiled model as `contexts` engines that share its weights, each using `threads` CPU threads.

    Raises:
        Unsupported: the kind's library is not installed; names the extra that brings it.
        TidalError: the file cannot be opened with these shapes.
    """
    engines = _module(artifact.kind).open_engines(artifact, contexts=contexts, threads=threads)
    return cast(tuple[Engine, ...], engines)


def stored_as(kind: EngineKind) -> Mapping[Precision, Precision]:
    """Precisions that the kind can run at, each with the precision of the file that it is opened from."""
    return cast(Mapping[Precision, Precision], _module(kind).STORED_AS)


def engine_file(kind: EngineKind) -> str:
    """Name of the file that `compile_engine` writes and that is opened; others may lie beside it."""
    return cast(str, _module(kind).FILE)


def compile_engine(
    kind: EngineKind,
    module: torch.nn.Module,
    folder: Path,
    *,
    precision: Precision,
    shapes: Mapping[str, tuple[Dim, ...]],
    example: Mapping[str, npt.NDArray[Any]],
    calibration: Sequence[Mapping[str, npt.NDArray[Any]]] = (),
) -> None:
    """Compile a torch module, which takes and returns tensors by name, into `engine_file` in `folder`. For builders.

    Args:
        kind: the engine to compile for.
        module: called with keyword arguments, returns a dictionary of tensors.
        folder: an existing folder to write into.
        precision: a stored precision, see `stored_as`.
        shapes: each input's dimensions; the file can be opened with any shapes inside them.
        example: one batch of inputs, larger than 1 on every dynamic axis.
        calibration: batches to find the ranges of int8 values with; other precisions need none.

    Raises:
        Unsupported: the kind's library, or what the precision needs, is not installed.
    """
    _module(kind).compile_engine(
        module, folder, precision=precision, shapes=shapes, example=example, calibration=calibration
    )


def _module(kind: EngineKind) -> ModuleType:
    if kind not in available_kinds():
        raise Unsupported(f"engine kind '{kind}' is not available here: pip install 'tidal[{_LIBRARIES[kind][2]}]'")
    return import_module(f"tidal.engines.{kind}")
