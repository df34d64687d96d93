"""Builds the native library: `python -m tidal.flover.native.build [--force]`."""

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
    """Build the library, unless it exists, with g++ (10 or newer).

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
    compiler = find_compiler("without the native library, decoders run in torch, which is slower")
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
