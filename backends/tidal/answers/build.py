"""Builds the compiled core: `python -m tidal.answers.build [--force]`."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from tidal.answers.library import library_path, sources
from tidal.compiling import build_command, compile_sources, find_compiler, replace_library, run_compiler
from tidal.errors import NotFound

_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")


def build(*, force: bool = False) -> Path:
    """Build the module for this Python, unless it exists, with g++ (9 or newer).

    Args:
        force: Whether to build it even if it exists.

    Returns:
        Path of the module.

    Raises:
        NotFound: g++ or Python's headers are not installed.
        Internal: The compiler failed; contains its output.
    """
    target = library_path()
    if target.is_file() and not force:
        return target
    compiler = find_compiler("without the compiled core, answers are built in Python, which is slower")
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        raise NotFound(
            f"{headers} lacks Python.h, and without the compiled core answers are built in Python, which is slower: "
            "install the headers of this Python, such as the package python3-dev"
        )

    def link(scratch: Path, linked: Path) -> None:
        objects = compile_sources(compiler, sources(), scratch, (*_FLAGS, f"-I{headers}"), {})
        # Python's own symbols are in the process that loads the module.
        run_compiler([compiler, "-shared", "-o", str(linked), *objects, "-static-libstdc++", "-static-libgcc"])

    return replace_library(target, link)


if __name__ == "__main__":
    sys.exit(build_command(build))
