"""Compile the shared object: `python -m tidal.http_guard.build [--force]`."""

from __future__ import annotations

import sys
from pathlib import Path

from tidal.compiling import build_command, find_compiler, replace_library, run_compiler
from tidal.http_guard.library import is_current, library_path, source_folder, sources_digest

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
    target = library_path()
    if is_current() and not force:
        return target
    compiler = find_compiler("the HTTP guard, which protects Triton before 26.07 from oversized requests, needs it")
    flags = (*_FLAGS, f'-DTIDAL_SOURCES="{sources_digest()}"')
    sources = [str(path) for path in sorted(source_folder().glob("*.cpp"))]
    # A server that has loaded the previous one keeps it until it restarts.
    return replace_library(target, lambda _, made: run_compiler([compiler, *flags, *sources, "-o", str(made), "-ldl"]))


if __name__ == "__main__":
    sys.exit(build_command(build))
