"""Path of the HTTP guard, and whether it is current."""

from __future__ import annotations

from pathlib import Path

from tidal import compiling

BUILD_COMMAND = "python -m tidal.http_guard.build"


def source_folder() -> Path:
    """Return the folder of the sources, in the checkout or the installation.

    Raises:
        NotFound: The installation has no sources.
    """
    return compiling.source_folder("http_guard", "guard.cpp")


def library_path() -> Path:
    """Return the path of the shared object."""
    return source_folder() / "build" / "tidal_http_guard.so"


def sources_digest() -> str:
    """Return a digest of the sources."""
    return compiling.sources_digest(source_folder())


def is_current() -> bool:
    """Whether the shared object exists and was built from these sources."""
    path = library_path()
    return path.is_file() and f"tidal_http_guard_sources={sources_digest()}".encode() in path.read_bytes()
