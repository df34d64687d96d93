"""The registry of engines: one entry per engine library, with what distinguishes it from the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tidal.device import DeviceKind
from tidal.registered import Registered, check_registered


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """One engine.

    Attributes:
        module: Dotted name of the module that implements it, with `FILE`, `STORED_AS`, `compile_engine` and
            `open_engines`, and `specialise_engine` if it uses plans. It is imported when the engine is used.
        library: Python module that must be importable.
        distribution: Distribution of that library, whose version is recorded in manifests.
        extra: Extra of Tidal that installs it.
        devices: Devices that it runs on; the preferred one is the last.
        build_libraries: Other distributions whose versions decide what it compiles.
        int8_libraries: Distributions that it needs to compile int8.
        uses_plans: Whether engines are opened from plans that are made for their shapes, instead of the compiled file.
        queues_runs: Whether runs that are started while all contexts run wait for the first that ends.
        threads_per_process: Whether all engines of a process share one number of threads.
    """

    module: str
    library: str
    distribution: str
    extra: str
    devices: tuple[DeviceKind, ...]
    build_libraries: tuple[str, ...] = ()
    int8_libraries: tuple[str, ...] = ()
    uses_plans: bool = False
    queues_runs: bool = False
    threads_per_process: bool = False


ENGINES: dict[str, EngineEntry] = {
    "openvino": EngineEntry(
        module="tidal.engines.openvino",
        library="openvino",
        distribution="openvino",
        extra="serve",
        devices=("cpu",),
        int8_libraries=("nncf",),
        queues_runs=True,
    ),
    "torch": EngineEntry(
        module="tidal.engines.torch",
        library="torch",
        distribution="torch",
        extra="build",
        devices=("cpu", "gpu"),
        threads_per_process=True,
    ),
    "tensorrt": EngineEntry(
        module="tidal.engines.tensorrt",
        library="tensorrt",
        distribution="tensorrt",
        extra="tensorrt",
        devices=("gpu",),
        build_libraries=("onnxscript",),
        uses_plans=True,
    ),
}


def engine_entry(kind: str) -> EngineEntry:
    """The entry of an engine.

    Raises:
        ValueError: The registry has no engine of this name.
    """
    return ENGINES[check_registered(kind, ENGINES)]


# Name of a registered engine.
EngineKind = Annotated[str, Registered(ENGINES)]
