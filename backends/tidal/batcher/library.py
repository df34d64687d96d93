"""Where the shared object lies, and whether it is there."""

from __future__ import annotations

from pathlib import Path

from tidal import compiling

BUILD_COMMAND = "python -m tidal.batcher.build"


def source_folder() -> Path:
    """Folder of the sources, beside this package or installed with it.

    Raises:
        NotFound: the installation lacks them.
    """
    return compiling.source_folder("batcher", "batcher.cpp")


def library_path() -> Path:
    """Where the shared object lies once it is built: what TRITON_BATCH_STRATEGY_PATH is to name."""
    return source_folder() / "build" / "tidal_batcher.so"


def sources_digest() -> str:
    """What tells these sources from others."""
    return compiling.sources_digest(source_folder())


def is_current() -> bool:
    """Whether the shared object is there and made of these sources."""
    path = library_path()
    return path.is_file() and f"tidal_batcher_sources={sources_digest()}".encode() in path.read_bytes()
