"""Builds the library with the graph's operations: `python -m tidal.pets.engine.build [--force]`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openvino as ov

from tidal.errors import Internal, NotFound, TidalError
from tidal.pets.engine.native import library_path, source_folder

_COMMON = (
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-Wall",
    # OpenVINO's libraries are built with it, whatever the compiler's own default is.
    "-D_GLIBCXX_USE_CXX11_ABI=1",
)  # fmt: skip
# The kernels are compiled once for each level of vector instructions; which one runs is decided at run time.
_LEVELS: dict[str, tuple[str, ...]] = {
    "avx512": ("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma", "-mprefer-vector-width=512"),
    "avx2": ("-mavx2", "-mfma"),
    "plain": (),
}


def build(*, force: bool = False) -> Path:
    """Build the library for this OpenVINO where it is not yet, with g++ (9 or newer).

    Args:
        force: build it again where it is.

    Returns:
        The library.

    Raises:
        NotFound: there is no g++, or OpenVINO's headers are missing.
        Internal: the compiler refuses the sources; says what it prints.
    """
    target = library_path()
    if target.is_file() and not force:
        return target
    compiler = shutil.which("g++")
    if compiler is None:
        raise NotFound("g++ is missing, and the pets backend's operations are built with it: install g++ 9 or newer")
    package = Path(ov.__file__).parent
    libraries = package / "libs"
    runtime = [next(iter(sorted(libraries.glob(pattern))), None) for pattern in ("libopenvino.so*", "libtbb.so*")]
    if None in runtime or not (package / "include" / "openvino" / "openvino.hpp").is_file():
        raise NotFound(f"{package} lacks OpenVINO's headers or libraries: install OpenVINO's wheel from PyPI")
    sources = source_folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        commands, objects = [], []
        for source in sorted(sources.glob("*.cpp")):
            for level, flags in _LEVELS.items() if source.name == "kernels.cpp" else (("", ()),):
                objects.append(f"{scratch}/{source.stem}{level}.o")
                named = (f"-DTIDAL_LEVEL={level}",) if level else ("-isystem", str(package / "include"))
                commands.append([compiler, *_COMMON, *flags, *named, "-c", str(source), "-o", objects[-1]])
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(_run, commands))
        linked = f"{scratch}/{target.name}"
        linking = [f"-L{libraries}", *(f"-l:{path.name}" for path in runtime if path), f"-Wl,-rpath,{libraries}"]
        _run([compiler, "-shared", "-o", linked, *objects, *linking, "-Wl,--no-undefined"])
        Path(linked).replace(target)
    for path in target.parent.glob("libtidal_pets-*.so"):
        if path != target:
            path.unlink()
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Internal(f"g++ failed: {' '.join(command)}\n{done.stderr.strip()[-4000:]}")


def main() -> int:
    """Build and say where; errors are one line."""
    try:
        print(f"{build(force='--force' in sys.argv[1:])}")
    except TidalError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
