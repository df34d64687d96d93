"""What a machine has: GPUs, and the libraries that steps require."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from typing import Any

# Module, and the distribution that carries it.
LIBRARIES = {
    "torch": "torch", "numpy": "numpy", "pydantic": "pydantic", "safetensors": "safetensors", "psutil": "psutil",
    "transformers": "transformers", "tensorrt": "tensorrt", "triton": "triton", "cuda.bindings": "cuda-bindings",
    "pytest": "pytest", "tokenizers": "tokenizers", "openvino": "openvino",
}  # fmt: skip
_PROGRAMS = ("tritonserver", "trtexec", "gcc", "g++")


def describe_machine() -> dict[str, Any]:
    """Return GPUs, processor, libraries and programs of this machine, without initialising CUDA."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "gpus": _gpus(),
        "packages": {dist: found for name, dist in LIBRARIES.items() if (found := library(name)) is not None},
        "absent": [name for name in LIBRARIES if library(name) is None],
        "programs": {name: found for name in _PROGRAMS if (found := shutil.which(name)) is not None},
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def library(name: str) -> str | None:
    """Return the version of an importable module, `unknown` without metadata; None if it cannot be imported."""
    try:
        if importlib.util.find_spec(name) is None:
            return None
    except (ImportError, ValueError):
        return None
    try:
        return importlib.metadata.version(LIBRARIES.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def missing(names: tuple[str, ...]) -> list[str]:
    """Return the modules that cannot be imported."""
    return [name for name in names if library(name) is None]


def install_carried(wheels: str, target: str) -> str | None:
    """Install what is missing from a folder of wheels into a folder, without any network.

    Args:
        wheels: Folder with wheels.
        target: Folder to install into.

    Returns:
        What pip reported if it failed; None if it succeeded.
    """
    found = sorted(os.path.join(wheels, name) for name in os.listdir(wheels) if name.endswith(".whl"))
    present = {_normal(dist.metadata["Name"]) for dist in importlib.metadata.distributions() if dist.metadata["Name"]}
    wanted = [path for path in found if _normal(os.path.basename(path).split("-")[0]) not in present]
    if not wanted:
        return None
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", target]
    done = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stderr or done.stdout).strip()[-500:]


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def _gpus() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
