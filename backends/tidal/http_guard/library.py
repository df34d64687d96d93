"""Where the HTTP guard lies, and whether it is built."""

from __future__ import annotations

from pathlib import Path

from tidal import compiling

BUILD_COMMAND = "python -m tidal.http_guard.build"


def source_folder() -> Path:
    """Folder of the sources, beside this package or installed with it.

    Raises:
        NotFound: the installation lacks them.
    """
    return compiling.source_folder("http_guard", "guard.cpp")


def library_path() -> Path:
    """Where the shared object lies once it is built."""
    return source_folder() / "build" / "tidal_http_guard.so"


def sources_digest() -> str:
    """Digest of the sources that the shared object is built from."""
    return compiling.sources_digest(source_folder())


def is_current() -> bool:
    """Whether the shared object exists and was built from these sources."""
    path = library_path()
    return path.is_file() and f"tidal_http_guard_sources={sources_digest()}".encode() in path.read_bytes()
