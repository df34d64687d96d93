"""Where a run keeps what it has measured, so that one that was cut short goes on where it stopped."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

_SOURCES = ("backends", "benchmarks", "client")


def cache_folder() -> Path:
    """Where trained artefacts stay between runs: `$TIDAL_CACHE`, else `~/.cache/tidal`."""
    return Path(os.environ.get("TIDAL_CACHE", Path.home() / ".cache" / "tidal"))


def kept_file(name: str, *facts: object, files: Iterable[Path]) -> Path:
    """A file of a run, in the cache folder: the same one for the same facts and files, and the same code in all that
    takes part.

    Args:
        name: how the file's name begins.
        facts: what else a run depends on, such as its size, each with a `repr` that says all.
        files: what it measures.
    """
    digest = hashlib.sha256(repr(facts).encode())
    root = Path(__file__).parents[1]
    code = [file for part in _SOURCES for file in sorted((root / part).rglob("*.py"))]
    for file in (*files, *code):
        digest.update(file.read_bytes())
    return cache_folder() / f"{name}-{digest.hexdigest()[:12]}.json"
