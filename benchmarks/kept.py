"""The file in which a run stores its measurements, so that an interrupted run can resume."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

_SOURCES = ("backends", "benchmarks", "client")


def cache_folder() -> Path:
    """Return the folder of trained artefacts: `$TIDAL_CACHE`, else `~/.cache/tidal`."""
    return Path(os.environ.get("TIDAL_CACHE", Path.home() / ".cache" / "tidal"))


def kept_file(name: str, *facts: object, files: Iterable[Path]) -> Path:
    """Return a run's file in the cache folder; its name depends on the arguments and on the code.

    Args:
        name: Prefix of the file's name.
        facts: Further values that the run depends on, such as its size; each has a complete `repr`.
        files: Files that it measures.
    """
    digest = hashlib.sha256(repr(facts).encode())
    root = Path(__file__).parents[1]
    code = [file for part in _SOURCES for file in sorted((root / part).rglob("*.py"))]
    for file in (*files, *code):
        digest.update(file.read_bytes())
    return cache_folder() / f"{name}-{digest.hexdigest()[:12]}.json"
