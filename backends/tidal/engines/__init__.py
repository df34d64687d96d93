"""Compiled models behind one contract; each engine library is imported by one module only. Everything may import it."""

from tidal.engines.base import Artifact, Engine, PlanOptions, Precision, TensorSpec
from tidal.engines.entries import EngineKind, engine_entry
from tidal.engines.registry import (
    available_kinds,
    choose_device,
    compile_engine,
    engine_file,
    engine_version,
    open_engines,
    specialise_engine,
    stored_as,
)

__all__ = [
    "Artifact",
    "Engine",
    "EngineKind",
    "PlanOptions",
    "Precision",
    "TensorSpec",
    "available_kinds",
    "choose_device",
    "compile_engine",
    "engine_entry",
    "engine_file",
    "engine_version",
    "open_engines",
    "specialise_engine",
    "stored_as",
]
