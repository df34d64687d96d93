"""Locating tritonserver on this machine, and the environment that it needs to run Python backends.

Two sources: a `tritonserver` on PATH (NVIDIA's image, a host installation) or the one in the PyPI package
`nvidia-pytriton`.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from tidal.errors import NotFound
from tidal_client.extras import install_command

_SYSTEM_ROOTS = (Path("/opt/tritonserver"),)
STUB_NAME = "triton_python_backend_stub"


@dataclass(frozen=True, slots=True)
class TritonInstallation:
    """A tritonserver with its Python backend.

    Attributes:
        source: Source of the path: an option, an environment variable or a package.
        binary: Path of the tritonserver executable.
        python_backend: Folder of the Python backend.
        stub: Path of the stub executable that runs Python models.
        libraries: Folders of the shared libraries that it loads.
    """

    source: Literal["path", "nvidia-pytriton"]
    binary: Path
    python_backend: Path
    stub: Path
    libraries: tuple[Path, ...]

    def environment(self) -> dict[str, str]:
        """Process environment in which this server's Python stubs import this interpreter's packages.

        The stub is linked to libpython by name, so the loader must find the library of the interpreter whose packages
        are used: another build of the same version lacks symbols that extension modules need. The stub finds the
        virtual environment through PATH.
        """
        env = dict(os.environ)
        for name, folders in self.search_paths().items():
            env[name] = os.pathsep.join([*folders, *filter(None, [env.get(name)])])
        env.pop("PYTHONHOME", None)
        return env

    def search_paths(self) -> dict[str, list[str]]:
        """Folders that `environment` puts before those of PATH and LD_LIBRARY_PATH, by variable."""
        # LIBDIR of an interpreter that was moved after its build still names the old folder.
        own = [str(Path(sys.base_prefix) / "lib"), sysconfig.get_config_var("LIBDIR") or ""]
        libraries = list(dict.fromkeys(filter(None, [*own, *map(str, self.libraries)])))
        return {"PATH": [str(Path(sys.executable).parent)], "LD_LIBRARY_PATH": libraries}


def find_installation() -> TritonInstallation:
    """The server on PATH, else the one of nvidia-pytriton.

    Raises:
        NotFound: Neither exists, or its Python backend has no stub for this interpreter.
    """
    on_path = shutil.which("tritonserver")
    if on_path is not None:
        return _from_path(Path(on_path).resolve())
    try:
        package = Path(str(distribution("nvidia-pytriton").locate_file("pytriton"))).resolve()
    except PackageNotFoundError:
        raise NotFound(
            "no tritonserver on PATH, and nvidia-pytriton is not installed: "
            f"{install_command('embedded')}, or run inside NVIDIA's Triton image"
        ) from None
    return _from_pytriton(package)


def _from_path(binary: Path) -> TritonInstallation:
    candidates = (binary.parent.parent, *_SYSTEM_ROOTS)
    for root in candidates:
        backend = root / "backends" / "python"
        if (backend / STUB_NAME).is_file():
            return TritonInstallation("path", binary, backend, backend / STUB_NAME, (root / "lib",))
    searched = ", ".join(str(root / "backends" / "python") for root in dict.fromkeys(candidates))
    raise NotFound(f"{binary} has no Python backend ({STUB_NAME}) in {searched}")


def _from_pytriton(package: Path) -> TritonInstallation:
    root = package / "tritonserver"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / python / STUB_NAME
    if not stub.is_file():
        have = sorted(p.name for p in (root / "python_backend_stubs").glob("*"))
        raise NotFound(f"nvidia-pytriton has no stub for Python {python}; it has {', '.join(have)}")
    libraries = package.parent / "nvidia_pytriton.libs"
    return TritonInstallation(
        "nvidia-pytriton", root / "bin" / "tritonserver", root / "backends" / "python", stub, (libraries,)
    )
