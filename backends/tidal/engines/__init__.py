"""Compiled models behind one contract. Each module here is the only place that names its engine library."""

from tidal.engines.base import Artifact, Engine, EngineKind, Precision, TensorSpec
from tidal.engines.registry import available_kinds, compile_engine, engine_file, engine_version, open_engines, stored_as

__all__ = [
    "Artifact",
    "Engine",
    "EngineKind",
    "Precision",
    "TensorSpec",
    "available_kinds",
    "compile_engine",
    "engine_file",
    "engine_version",
    "open_engines",
    "stored_as",
]
