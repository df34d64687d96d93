"""Builds the native library: `python -m tidal.flover.native.build [--force]`."""

from __future__ import annotations

import sys
from pathlib import Path

from tidal.compiling import (
    LEVELS,
    build_command,
    compile_sources,
    find_compiler,
    replace_library,
    run_compiler,
    shared_headers,
)
from tidal.flover.native.library import library_path, sources

_FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast", "-Wall",
)  # fmt: skip


def build(*, force: bool = False) -> Path:
    """Build the library, unless it exists, with g++ (11 or newer).

    Args:
        force: Whether to build it even if it exists.

    Returns:
        Path of the library.

    Raises:
        NotFound: g++ is not installed.
        Internal: The compiler failed; contains its output.
    """
    target = library_path()
    if target.is_file() and not force:
        return target
    compiler = find_compiler("without the native library, decoders run in torch, which is slower", version=11)

    def link(scratch: Path, linked: Path) -> None:
        flags = (*_FLAGS, f"-I{shared_headers()}")
        objects = compile_sources(compiler, sources(), scratch, flags, {"kernels.cpp": tuple(LEVELS)})
        run_compiler([compiler, "-shared", "-o", str(linked), *objects, "-pthread", "-Wl,--no-undefined"])

    return replace_library(target, link)


if __name__ == "__main__":
    sys.exit(build_command(build))
