"""Build the library of graph operations: `python -m tidal.pets.openvino_engine.build [--force]`."""

from __future__ import annotations

import sys
from pathlib import Path

import openvino as ov

from tidal.compiling import (
    build_command,
    compile_sources,
    find_compiler,
    replace_library,
    run_compiler,
    shared_headers,
)
from tidal.errors import NotFound
from tidal.pets.openvino_engine.native import library_path, source_folder

_COMMON = (
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-Wall",
    # OpenVINO's libraries are built with it, whatever the compiler's own default is.
    "-D_GLIBCXX_USE_CXX11_ABI=1",
)  # fmt: skip
_LEVELS = ("avx512", "avx2", "plain")


def build(*, force: bool = False) -> Path:
    """Build the library for the installed OpenVINO with g++ (9 or newer), unless it is already built.

    Args:
        force: Whether to build it even if it exists.

    Returns:
        Path of the library.

    Raises:
        NotFound: g++ is missing, or OpenVINO's headers are.
        Internal: The compiler rejects the sources; the message has its output.
    """
    target = library_path()
    if target.is_file() and not force:
        return target
    compiler = find_compiler("the pets backend's operations are built with it")
    package = Path(ov.__file__).parent
    libraries = package / "libs"
    runtime = [next(iter(sorted(libraries.glob(pattern))), None) for pattern in ("libopenvino.so*", "libtbb.so*")]
    if None in runtime or not (package / "include" / "openvino" / "openvino.hpp").is_file():
        raise NotFound(f"{package} lacks OpenVINO's headers or libraries: install OpenVINO's wheel from PyPI")

    def link(scratch: Path, linked: Path) -> None:
        flags = (*_COMMON, f"-I{shared_headers()}", "-isystem", str(package / "include"))
        objects = compile_sources(compiler, source_folder(), scratch, flags, {"kernels.cpp": _LEVELS})
        # No run path: `native` imports OpenVINO first, and the loader then uses the libraries that are already loaded.
        linking = [f"-L{libraries}", *(f"-l:{path.name}" for path in runtime if path)]
        run_compiler([compiler, "-shared", "-o", str(linked), *objects, *linking, "-Wl,--no-undefined"])

    return replace_library(target, link)


if __name__ == "__main__":
    sys.exit(build_command(build))
