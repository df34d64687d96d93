"""Where the shared object lies, and whether it is there."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

import tidal
from tidal.errors import NotFound

BUILD_COMMAND = "python -m tidal.batcher.build"


def source_folder() -> Path:
    """Folder of the sources, beside this package or installed with it.

    Raises:
        NotFound: the installation lacks them.
    """
    checkout = Path(tidal.__file__).resolve().parent.parent / "batcher"
    installed = Path(sysconfig.get_path("data")) / "share" / "tidal" / "backends" / "batcher"
    for folder in (checkout, installed):
        if (folder / "batcher.cpp").is_file():
            return folder
    raise NotFound(f"the sources of the batcher are neither in {checkout} nor in {installed}: reinstall tidal")


def library_path() -> Path:
    """Where the shared object lies once it is built: what TRITON_BATCH_STRATEGY_PATH is to name."""
    return source_folder() / "build" / "tidal_batcher.so"


def sources_digest() -> str:
    """What tells these sources from others."""
    digest = hashlib.sha256()
    for path in sorted(source_folder().glob("*")):
        if path.suffix in (".cpp", ".hpp", ".h"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def is_current() -> bool:
    """Whether the shared object is there and made of these sources."""
    path = library_path()
    return path.is_file() and f"tidal_batcher_sources={sources_digest()}".encode() in path.read_bytes()
