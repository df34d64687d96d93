"""Compiles and opens engines of any registered kind, and checks which kinds this machine supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy.typing as npt

from tidal.device import DeviceKind, gpu, has_gpu, library_version
from tidal.engines.base import Artifact, Dim, Engine, PlanOptions, Precision
from tidal.engines.entries import ENGINES, EngineKind, engine_entry
from tidal.errors import InvalidArgument, Unsupported
from tidal_client.extras import install_command

if TYPE_CHECKING:
    import torch

Shapes = Mapping[str, tuple[Dim, ...]]


def available_kinds() -> tuple[EngineKind, ...]:
    """Engine kinds that can run here: their library is installed, and this machine has a device for them."""
    return tuple(
        kind
        for kind, entry in ENGINES.items()
        if find_spec(entry.library) is not None and ("cpu" in entry.devices or has_gpu())
    )


def engine_version(kind: EngineKind) -> str | None:
    """Installed version of an engine kind's library; None if it is not installed."""
    return library_version(engine_entry(kind).distribution)


def choose_device(kind: EngineKind, wanted: Literal["auto"] | DeviceKind) -> DeviceKind:
    """The device that engines of a kind run on.

    Args:
        kind: Engine kind.
        wanted: Device to use; `auto`: a GPU if the kind supports it and this machine has one.

    Raises:
        InvalidArgument: The kind does not support the device.
        Unsupported: The kind's library is not installed, or this machine has no GPU.
    """
    devices = engine_entry(kind).devices
    if wanted != "auto" and wanted not in devices:
        raise InvalidArgument(f"field 'device': engine {kind} runs on {' or '.join(devices)}, not on {wanted}")
    _require(kind)
    if wanted == "auto":
        return devices[-1] if len(devices) == 1 or has_gpu() else "cpu"
    if wanted == "gpu":
        gpu()
    return wanted


def open_engines(artifact: Artifact, *, contexts: int = 1, threads: int = 1, queued: int = 0) -> tuple[Engine, ...]:
    """Open a compiled model as engines that share its weights.

    Args:
        artifact: The compiled model.
        contexts: Number of engines that run at the same time.
        threads: CPU threads of each engine.
        queued: Number of further engines whose runs wait until another one has ended, for kinds that queue runs.

    Raises:
        Unsupported: The kind's library is not installed (the error names the extra that installs it), or this machine
            has no GPU.
        TidalError: The file cannot be opened with these shapes.
    """
    more = {"queued": queued} if queued else {}
    engines = _module(artifact.kind).open_engines(artifact, contexts=contexts, threads=threads, **more)
    return cast(tuple[Engine, ...], engines)


def stored_as(kind: EngineKind, device: DeviceKind = "cpu") -> Mapping[Precision, Precision]:
    """Precisions that an engine kind supports on a device, each with the precision of the file to open."""
    stored = cast(Mapping[Precision, Precision], _module(kind).STORED_AS)
    if device == "cpu":
        return {precision: file for precision, file in stored.items() if precision != "fp16"}
    return stored


def engine_file(kind: EngineKind) -> str:
    """Name of the file that `compile_engine` writes; there may be other files in its folder."""
    return cast(str, _module(kind).FILE)


def compile_engine(
    kind: EngineKind,
    module: torch.nn.Module,
    folder: Path,
    *,
    precision: Precision,
    shapes: Shapes,
    example: Mapping[str, npt.NDArray[Any]],
    calibration: Sequence[Mapping[str, npt.NDArray[Any]]] = (),
) -> None:
    """Compile a torch module into the file `engine_file` of a folder. For builders.

    Args:
        kind: Engine kind to compile for.
        module: Module that is called with tensors by keyword and returns a dictionary of tensors.
        folder: Existing folder to write into.
        precision: Stored precision, see `stored_as`.
        shapes: Dimensions of each input by name; engines are opened with shapes inside them.
        example: One batch of inputs, larger than 1 on every dynamic axis.
        calibration: Batches that determine the ranges of int8 values; not used for other precisions.

    Raises:
        Unsupported: The kind's library, or a library that the precision needs, is not installed.
    """
    _module(kind).compile_engine(
        module, folder, precision=precision, shapes=shapes, example=example, calibration=calibration
    )


def specialise_engine(kind: EngineKind, path: Path, shapes: Sequence[Shapes], options: PlanOptions) -> tuple[Path, ...]:
    """The files to open a compiled model from, one for each of `shapes`; several may be the same. For builders.

    For most kinds it is the compiled file. A kind that uses plans needs one made for the shapes: it is written into
    the folder of the compiled file, unless it exists.

    Args:
        kind: Engine kind.
        path: File that `compile_engine` wrote.
        shapes: Shapes that engines are opened with: dimensions of each input by name.
        options: Options of plans.

    Raises:
        Unsupported: The kind's library is not installed, or this machine has no GPU.
        TidalError: No engine can be made for these shapes.
    """
    if not engine_entry(kind).uses_plans:
        return (path,) * len(shapes)
    return cast(tuple[Path, ...], _module(kind).specialise_engine(path, shapes, options))


def _module(kind: EngineKind) -> ModuleType:
    _require(kind)
    return import_module(engine_entry(kind).module)


def _require(kind: EngineKind) -> None:
    entry = engine_entry(kind)
    if find_spec(entry.library) is None:
        raise Unsupported(f"engine kind '{kind}' is not available here: {install_command(entry.extra)}")
    if "cpu" not in entry.devices:
        gpu()
