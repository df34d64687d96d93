"""Builds the library of kernels: `python -m tidal.flover.native.build [--force]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tidal.compiling import LEVELS, build_command, compile_sources, find_compiler, run_compiler, shared_headers
from tidal.flover.native.library import library_path, sources

_FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast", "-Wall",
)  # fmt: skip


def build(*, force: bool = False) -> Path:
    """Build the library where it is not yet, with g++ (10 or newer).

    Args:
        force: build it again where it is.

    Returns:
        The library.

    Raises:
        NotFound: there is no g++.
        Internal: the compiler refuses the sources; says what it prints.
    """
    target = library_path()
    if target.is_file() and not force:
        return target
    compiler = find_compiler("decoders run in torch alone without what is built with it, which takes longer")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        flags = (*_FLAGS, f"-I{shared_headers()}")
        objects = compile_sources(compiler, sources(), Path(scratch), flags, {"kernels.cpp": tuple(LEVELS)})
        linked = Path(scratch) / target.name
        run_compiler([compiler, "-shared", "-o", str(linked), *objects, "-pthread", "-Wl,--no-undefined"])
        linked.replace(target)
    for path in target.parent.glob("libtidal_flover-*.so"):
        if path != target:
            path.unlink()
    return target


if __name__ == "__main__":
    sys.exit(build_command(build))
