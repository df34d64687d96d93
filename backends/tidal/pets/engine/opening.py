"""The one way to open a published encoder with whichever engine it was built for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tidal.device import DeviceKind
from tidal.errors import Unsupported
from tidal.pets.engine.base import Engine, PetsPrecision
from tidal.pets.profile import PetsProfile
from tidal.pets.terms import TaskTerms

PetsEngineKind = Literal["openvino", "torch", "tensorrt"]


def open_pets_engine(
    kind: PetsEngineKind,
    folder: Path,
    *,
    threads: int,
    device: DeviceKind,
    precision: PetsPrecision = "fp32",
    merged: TaskTerms | None = None,
    profile: PetsProfile | None = None,
) -> Engine:
    """Open an encoder that `export_encoder` wrote for an engine.

    Args:
        kind: of engine.
        folder: that it was written to.
        threads: on a CPU.
        device: where it runs; of OpenVINO's always the CPU.
        precision: of the shared products, see `open_engine`.
        merged: a task that becomes part of the weights, see `open_engine`.
        profile: of the encoder on this device, by which operators are spread over the streams of a GPU.

    Raises:
        InvalidArgument: the files cannot be read, or `merged` does not fit them.
        NotFound: the library with the graph's operations is not built.
        Unsupported: the engine does not run here or at this precision, or cannot merge.
    """
    # None is imported for another: each brings a whole library.
    if kind == "openvino":
        from tidal.pets.engine.engine import open_engine

        return open_engine(folder, threads=threads, precision=precision, merged=merged)
    if precision != "fp32":
        raise Unsupported(f"engine {kind} does not run {precision}; accepted is fp32")
    if kind == "tensorrt":
        from tidal.pets.tensorrt_engine.engine import open_tensorrt_engine

        if merged is not None:
            raise Unsupported("engine tensorrt makes no merged copies: its weights are part of the plan")
        return open_tensorrt_engine(folder)
    from tidal.pets.torch_engine.engine import open_torch_engine
    from tidal.pets.torch_engine.streams import by_intensity

    engine = open_torch_engine(folder, threads=threads, device=device, merged=merged)
    if profile is not None:
        engine.assign = by_intensity(profile)
    return engine
