"""Which engine kinds this machine has, and the one way to open an engine of any kind."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import cast, get_args

from tidal.device import library_version
from tidal.engines.base import Artifact, Engine, EngineKind
from tidal.errors import Unsupported

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
    if artifact.kind not in available_kinds():
        raise Unsupported(
            f"engine kind '{artifact.kind}' is not available here: pip install 'tidal[{_LIBRARIES[artifact.kind][2]}]'"
        )
    module = import_module(f"tidal.engines.{artifact.kind}")
    return cast(tuple[Engine, ...], module.open_engines(artifact, contexts=contexts, threads=threads))
