"""Which engine kinds this machine has, and the one way to open an engine of any kind."""

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
    """Engine kinds that can run here: their library is installed (found, not imported), and there is a device."""
    return tuple(
        kind
        for kind, entry in ENGINES.items()
        if find_spec(entry.library) is not None and ("cpu" in entry.devices or has_gpu())
    )


def engine_version(kind: EngineKind) -> str | None:
    """Installed version of the kind's library, or None."""
    return library_version(engine_entry(kind).distribution)


def choose_device(kind: EngineKind, wanted: Literal["auto"] | DeviceKind) -> DeviceKind:
    """Where engines of a kind run; `auto`: on the GPU where the kind and this machine have one.

    Raises:
        InvalidArgument: the kind does not run on the device that is wanted.
        Unsupported: the kind's library is not installed, or this machine has no GPU.
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


def open_engines(artifact: Artifact, *, contexts: int = 1, threads: int = 1) -> tuple[Engine, ...]:
    """Open a compiled model as `contexts` engines that share its weights, each using `threads` CPU threads.

    Raises:
        Unsupported: the kind's library is not installed, which names the extra that brings it, or there is no GPU.
        TidalError: the file cannot be opened with these shapes.
    """
    engines = _module(artifact.kind).open_engines(artifact, contexts=contexts, threads=threads)
    return cast(tuple[Engine, ...], engines)


def stored_as(kind: EngineKind, device: DeviceKind = "cpu") -> Mapping[Precision, Precision]:
    """Precisions that the kind can run at, each with the precision of the file that it is opened from."""
    stored = cast(Mapping[Precision, Precision], _module(kind).STORED_AS)
    if device == "cpu":
        return {precision: file for precision, file in stored.items() if precision != "fp16"}
    return stored


def engine_file(kind: EngineKind) -> str:
    """Name of the file that `compile_engine` writes; others may lie beside it."""
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
    """Compile a torch module, which takes and returns tensors by name, into `engine_file` in `folder`. For builders.

    Args:
        kind: the engine to compile for.
        module: called with keyword arguments, returns a dictionary of tensors.
        folder: an existing folder to write into.
        precision: a stored precision, see `stored_as`.
        shapes: each input's dimensions; what is opened later has shapes inside them.
        example: one batch of inputs, larger than 1 on every dynamic axis.
        calibration: batches to find the ranges of int8 values with; other precisions need none.

    Raises:
        Unsupported: the kind's library, or what the precision needs, is not installed.
    """
    _module(kind).compile_engine(
        module, folder, precision=precision, shapes=shapes, example=example, calibration=calibration
    )


def specialise_engine(kind: EngineKind, path: Path, shapes: Sequence[Shapes], options: PlanOptions) -> tuple[Path, ...]:
    """The files to open a compiled model from, one for each of `shapes`; equal ones are one file. For builders.

    Most kinds take their shapes when a file is opened, and this is the compiled file. TensorRT needs a plan made for
    the shapes: it is written beside the compiled file, and made only if it is not there.

    Args:
        kind: the engine kind.
        path: what `compile_engine` wrote.
        shapes: what engines will be opened with.
        options: how plans are made.

    Raises:
        Unsupported: the kind's library is not installed, or there is no GPU.
        TidalError: no engine can be made for these shapes.
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
