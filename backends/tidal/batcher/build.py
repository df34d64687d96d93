"""Builds the shared object: `python -m tidal.batcher.build [--force]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tidal.batcher.library import is_current, library_path, source_folder, sources_digest
from tidal.compiling import build_command, find_compiler, run_compiler

_FLAGS = (
    "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra",
    # Triton closes the library while a thread may still be in it.
    "-shared", "-Wl,-z,nodelete",
    # It has its own C++ runtime, and shows nothing of it: the server's may be older than this compiler's.
    "-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL",
)  # fmt: skip


def build(*, force: bool = False) -> Path:
    """Build the shared object where it is not yet, with g++ (9 or newer).

    A server that has loaded the one before goes on with it until it loads the model again.

    Args:
        force: build it again where it is.

    Returns:
        The shared object.

    Raises:
        NotFound: there is no g++; says what is lost without it.
        Internal: the compiler refuses the sources; says what it prints.
    """
    target = library_path()
    if is_current() and not force:
        return target
    compiler = find_compiler(
        "the custom batcher is built with it, which models that name it in TRITON_BATCH_STRATEGY_PATH need"
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        sources = [str(path) for path in sorted(source_folder().glob("*.cpp"))]
        command = [compiler, *_FLAGS, f'-DTIDAL_SOURCES="{sources_digest()}"', *sources, "-o", str(made)]
        run_compiler(command)
        made.replace(target)
    return target


if __name__ == "__main__":
    sys.exit(build_command(build))
