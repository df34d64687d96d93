"""NVIDIA's load generator `perf_analyzer`: the one on PATH, else that in the wheel of tritonclient 2.51.0.

Later wheels lack the program, so the wheel is downloaded beside the installed tritonclient and not installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

WHEEL = "tritonclient==2.51.0"
NAME = "perf_analyzer"
# Names of libraries that the program of the wheel loads, and their names in nvidia-pytriton.
_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


class NoPerfAnalyzer(Exception):
    """The program cannot be had on this machine."""


@dataclass(frozen=True, slots=True)
class PerfAnalyzer:
    """The program and the folder of the libraries that it needs.

    Attributes:
        program: Executable.
        libraries: Folder for `LD_LIBRARY_PATH`; None: the system's libraries suffice.
    """

    program: Path
    libraries: Path | None

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the program."""
        found = dict(os.environ)
        if self.libraries is not None:
            found["LD_LIBRARY_PATH"] = str(self.libraries)
        return found

    def run(self, arguments: list[str], folder: Path, *, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run the program in a folder; return its status and output."""
        return subprocess.run(
            [str(self.program), *arguments],
            env=self.environment,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )


def find(cache: Path) -> PerfAnalyzer:
    """Return the program on PATH or the one that `fetch` stored.

    Args:
        cache: Folder of downloaded artefacts.

    Raises:
        NoPerfAnalyzer: There is none.
    """
    if found := shutil.which(NAME):
        return PerfAnalyzer(Path(found), None)
    program, libraries = _stored(cache)
    if not (program.exists() and all((libraries / name).exists() for name in _LIBRARIES)):
        raise NoPerfAnalyzer(f"{NAME} is neither on PATH nor in {program.parent}")
    return PerfAnalyzer(program, libraries)


def fetch(cache: Path) -> PerfAnalyzer:
    """Return the program; download the wheel that contains it if it is missing.

    Args:
        cache: Folder to store it in.

    Raises:
        NoPerfAnalyzer: It cannot be downloaded, or its libraries are missing.
    """
    try:
        return find(cache)
    except NoPerfAnalyzer:
        _download(cache)
    return find(cache)


def _stored(cache: Path) -> tuple[Path, Path]:
    """Return the paths of the downloaded program and of its libraries."""
    folder = cache / NAME / WHEEL
    return folder / NAME, folder / "libraries"


def _download(cache: Path) -> None:
    program, stored = _stored(cache)
    try:
        bundled = Path(str(distribution("nvidia-pytriton").locate_file("nvidia_pytriton.libs")))
        libraries = {name: next(bundled.glob(pattern)) for name, pattern in _LIBRARIES.items()}
    except (PackageNotFoundError, StopIteration):
        raise NoPerfAnalyzer(f"nvidia-pytriton, which carries the libraries of {NAME}, is not installed") from None
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        if done.returncode:
            raise NoPerfAnalyzer(f"{WHEEL} cannot be downloaded: {done.stderr.strip()[-300:]}")
        stored.mkdir(parents=True, exist_ok=True)
        for name, library in libraries.items():
            _replace(stored / name, partial(_link, library))
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            content = wheel.read(next(name for name in wheel.namelist() if name.endswith(f"/bin/{NAME}")))

    def write(path: Path) -> None:
        path.write_bytes(content)
        path.chmod(0o755)

    _replace(program, write)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    # Moved into place when it is complete: another run may download it, too.
    temporary = path.with_name(f"partial-{path.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    write(temporary)
    temporary.replace(path)


def _link(target: Path, path: Path) -> None:
    path.symlink_to(target)
