"""The engines of PetS, one entry each, and opening an exported encoder with one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tidal.device import DeviceKind
from tidal.errors import Unsupported
from tidal.pets.engine.contract import PetsEngine, PetsPrecision
from tidal.pets.profile import PetsProfile
from tidal.pets.terms import TaskTerms
from tidal.registered import Registered


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an encoder is opened.

    Attributes:
        threads: CPU threads of the engine.
        device: Device that runs the encoder.
        precision: Precision of the shared products; tasks' own terms are always computed in fp32.
        merged: Task that is merged into the encoder's weights, or None.
        profile: Profile of the encoder on this device, which decides how operators are spread over the streams of a
            GPU, or None.
        narrow: Number of further lanes with one thread each.
    """

    threads: int
    device: DeviceKind
    precision: PetsPrecision
    merged: TaskTerms | None
    profile: PetsProfile | None
    narrow: int


@dataclass(frozen=True, slots=True)
class PetsEngineEntry:
    """What PetS knows of one engine without importing its library.

    Attributes:
        open: Opens the encoder in a folder; imports the engine's library when it is called.
        precisions: Precisions of the shared products that the engine offers.
        merges: Whether it opens copies of the encoder with a task merged into the weights.
        sparse: Whether it computes sparse differences.
        narrow: Whether it offers lanes with one thread each.
        graph: Whether it reads the encoder as a graph of OpenVINO, instead of as weights.
        attention: Whether it returns the attention that tokens receive.
        hidden: Whether it returns the vectors of all tokens besides the pooled ones.
    """

    open: Callable[[Path, EngineOptions], PetsEngine]
    precisions: tuple[PetsPrecision, ...] = ("fp32",)
    merges: bool = True
    sparse: bool = True
    narrow: bool = False
    graph: bool = False
    attention: bool = False
    hidden: bool = True


def open_pets_engine(
    kind: PetsEngineKind,
    folder: Path,
    *,
    threads: int,
    device: DeviceKind,
    precision: PetsPrecision = "fp32",
    merged: TaskTerms | None = None,
    profile: PetsProfile | None = None,
    narrow: int = 0,
) -> PetsEngine:
    """Open an encoder that `export_encoder` wrote for an engine.

    Args:
        kind: Engine that the encoder was exported for.
        folder: Folder that the encoder was exported to.
        threads: CPU threads of the engine.
        device: Device that runs the encoder; always the CPU for OpenVINO.
        precision: Precision of the shared products; tasks' own terms are always computed in fp32.
        merged: Task that is merged into the encoder's weights: the engine is then a copy of the encoder for that task
            alone, and runs it with the terms that `unmerged` returns. None: the encoder for all tasks.
        profile: Profile of the encoder on this device, which decides how operators are spread over the streams of a
            GPU; None: one stream.
        narrow: Number of further lanes with one thread each, of an engine that offers them; see `lanes_of`.

    Raises:
        InvalidArgument: The files cannot be read, or `merged` does not fit them.
        NotFound: The library with the graph's operations is not built.
        Unsupported: The engine does not run here or at this precision, or cannot merge.
    """
    entry = PETS_ENGINES[kind]
    if precision not in entry.precisions:
        raise Unsupported(f"engine {kind} does not run {precision}; accepted is {', '.join(entry.precisions)}")
    if merged is not None and not entry.merges:
        raise Unsupported(f"engine {kind} cannot make merged copies, because its weights are part of the plan")
    return entry.open(folder, EngineOptions(threads, device, precision, merged, profile, narrow))


def _open_openvino(folder: Path, options: EngineOptions) -> PetsEngine:
    from tidal.pets.openvino_engine.engine import open_openvino_engine

    return open_openvino_engine(
        folder, threads=options.threads, precision=options.precision, narrow=options.narrow, merged=options.merged
    )


def _open_torch(folder: Path, options: EngineOptions) -> PetsEngine:
    from tidal.pets.torch_engine.engine import open_torch_engine
    from tidal.pets.torch_engine.streams import by_intensity

    engine = open_torch_engine(folder, threads=options.threads, device=options.device, merged=options.merged)
    if options.profile is not None:
        engine.assign = by_intensity(options.profile)
    return engine


def _open_tensorrt(folder: Path, options: EngineOptions) -> PetsEngine:
    from tidal.pets.tensorrt_engine.engine import open_tensorrt_engine

    return open_tensorrt_engine(folder)


#: Every engine by its name in specs and manifests.
PETS_ENGINES: dict[str, PetsEngineEntry] = {
    "openvino": PetsEngineEntry(_open_openvino, precisions=("fp32", "bf16"), narrow=True, graph=True, attention=True),
    "torch": PetsEngineEntry(_open_torch),
    "tensorrt": PetsEngineEntry(_open_tensorrt, merges=False, sparse=False, hidden=False),
}

# Name of an engine of PetS.
PetsEngineKind = Annotated[str, Registered(PETS_ENGINES)]
