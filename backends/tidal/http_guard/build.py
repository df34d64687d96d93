"""Compile the shared object: `python -m tidal.http_guard.build [--force]`."""

from __future__ import annotations

import sys
from pathlib import Path

from tidal.compiling import build_command, find_compiler
from tidal.http_guard.library import LIBRARY

_FLAGS = (
    "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-shared",
    # Its C++ runtime is linked in: the server's may be older than this compiler's.
    "-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL",
)  # fmt: skip


def build(*, force: bool = False) -> Path:
    """Compile the shared object with g++ (9 or newer) if it is missing or outdated.

    Args:
        force: Whether to compile also when the shared object is current.

    Returns:
        Path of the shared object.

    Raises:
        NotFound: g++ is not installed.
        Internal: The compiler failed; the message carries its output.
    """
    if LIBRARY.is_current() and not force:
        return LIBRARY.file
    compiler = find_compiler("the HTTP guard, which protects Triton before 26.07 from oversized requests, needs it")
    return LIBRARY.compile(compiler, _FLAGS, ("-ldl",))


if __name__ == "__main__":
    sys.exit(build_command(build))
