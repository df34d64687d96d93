"""Build backend (PEP 517) that compiles the native parts before it packs a wheel.

A wheel carries the operators of `pets`, the kernels of `flover`, the HTTP guard, the custom batcher and the core
of the request path, compiled. So it is made for one platform, and for the OpenVINO version that `pyproject.toml` pins;
the core is for the Python that packs it, and others do without. Editable installs compile
nothing: `make install` does. `--config-setting native=skip` packs a wheel without them, which is enough for clients.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401 -- the hooks of an editable install and of a source archive
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

_ROOT = Path(__file__).resolve().parent.parent
#: Modules that compile one native part each.
NATIVE_BUILDS = (
    "tidal.pets.openvino_engine.build",
    "tidal.flover.native.build",
    "tidal.http_guard.build",
    "tidal.batcher.build",
    "tidal.answers.build",
)
#: Read by setup.py: the wheel holds compiled parts.
PLATFORM_WHEEL = "TIDAL_PLATFORM_WHEEL"

Settings = Mapping[str, str | list[str]] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Requirements of a wheel build: setuptools', and the packages that the native parts are compiled against."""
    required = list(build_meta.get_requires_for_build_wheel(config_settings))
    return [*required, *([] if _skips_native(config_settings) else _pinned_headers())]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Compile the native parts in the source tree, then pack them with the packages.

    Raises:
        SystemExit: g++ is missing, or a part does not compile.
    """
    native = not _skips_native(config_settings)
    if native:
        for module in NATIVE_BUILDS:
            _compile(module)
    os.environ[PLATFORM_WHEEL] = "1" if native else ""
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def _skips_native(config_settings: Settings) -> bool:
    value = (config_settings or {}).get("native", "compile")
    if value not in ("compile", "skip"):
        raise SystemExit(f"error: config setting native is '{value}'; accepted: compile (default), skip")
    return value == "skip"


def _pinned_headers() -> list[str]:
    """OpenVINO for the operators of `pets`, nlohmann-json for the custom batcher, at the versions of `serve`."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    serve = project["optional-dependencies"]["serve"]
    return [name for name in serve if name.startswith(("openvino==", "nlohmann-json=="))]


def _compile(module: str) -> None:
    path = os.pathsep.join(filter(None, [str(_ROOT / "backends"), str(_ROOT / "client"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, "-m", module], env={**os.environ, "PYTHONPATH": path}, check=False)
    if done.returncode:
        raise SystemExit(
            f"error: 'python -m {module}' failed (see above); "
            "install g++ 11 or newer, or pass --config-setting native=skip for a client without native parts"
        )
