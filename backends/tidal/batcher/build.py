"""Compile the shared object: `python -m tidal.batcher.build [--force]`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from tidal.batcher.library import LIBRARY
from tidal.compiling import build_command, find_compiler
from tidal.errors import NotFound

_FLAGS = (
    "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra",
    # Triton closes the library while a thread may still execute it.
    "-shared", "-Wl,-z,nodelete",
    # Its C++ runtime is linked in and hidden: the server's may be older than this compiler's.
    "-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL",
)  # fmt: skip


def json_headers() -> Path:
    """Folder to include `nlohmann/json.hpp` from, in the Python package `nlohmann-json`.

    Raises:
        NotFound: The package is not installed.
    """
    package = find_spec("nlohmann_json")
    if package is None or not package.submodule_search_locations:
        raise NotFound("the custom batcher is compiled against nlohmann-json: pip install nlohmann-json")
    return Path(package.submodule_search_locations[0]) / "include"


def build(*, force: bool = False) -> Path:
    """Compile the shared object with g++ (9 or newer), unless it is current.

    A server that has loaded the previous one keeps it until it loads the model again.

    Args:
        force: Whether to compile also when the shared object is current.

    Returns:
        Path of the shared object.

    Raises:
        NotFound: g++ or the package `nlohmann-json` is missing; the message names the consequence and the remedy.
        Internal: The compiler failed; the message carries its output.
    """
    if LIBRARY.is_current() and not force:
        return LIBRARY.file
    compiler = find_compiler(
        "the custom batcher is built with it, which models that name it in TRITON_BATCH_STRATEGY_PATH need"
    )
    return LIBRARY.compile(compiler, (*_FLAGS, "-isystem", str(json_headers())))


if __name__ == "__main__":
    sys.exit(build_command(build))
