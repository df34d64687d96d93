"""The registry of engines: one entry per engine library, with what distinguishes it from the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from tidal.device import DeviceKind


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
    threads_per_process: bool = False


ENGINES: dict[str, EngineEntry] = {
    "openvino": EngineEntry(
        module="tidal.engines.openvino",
        library="openvino",
        distribution="openvino",
        extra="serve",
        devices=("cpu",),
        int8_libraries=("nncf",),
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
    return ENGINES[check_engine_kind(kind)]


def check_engine_kind(kind: str) -> str:
    """Check that an engine is registered, and return its name.

    Raises:
        ValueError: It is not registered; names the registered ones.
    """
    if kind not in ENGINES:
        *first, last = map(repr, ENGINES)
        raise ValueError(f"expected {', '.join(first)} or {last}, got '{kind}'")
    return kind


class _Registered:
    """Validates the name of an engine when a spec or a manifest is read."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(check_engine_kind, core_schema.str_schema())

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(ENGINES)}


# Name of a registered engine.
EngineKind = Annotated[str, _Registered]
