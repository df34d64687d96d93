"""Environments of the peers, apart from Tidal's. `make peers` installs them.

The files beside this hold the versions of all packages as constraints, so that a run can be repeated.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.report import progress

INFINITY, SERVERS, LITELLM, PIPELINE, GENAI = "infinity", "servers", "litellm", "pipeline", "genai"
#: What is installed into each environment.
PACKAGES: Mapping[str, Sequence[str]] = {
    INFINITY: ("infinity-emb[server,torch,optimum,logging]", "torch", "transformers", "pyarrow"),
    SERVERS: ("litserve", "ray[serve]", "fastapi", "uvicorn[standard]", "openvino", "tokenizers", "fastembed"),
    LITELLM: ("litellm[proxy]",),
    # Answers to compare with, and no server: the last transformers that has a pipeline for questions.
    PIPELINE: ("torch", "transformers"),
    # The exporter of decoders, and the pipelines that run them.
    GENAI: ("optimum-intel", "nncf", "openvino-genai", "openvino-tokenizers"),
}
# Environments whose packages require one that cannot be installed: their file has all that are used.
_WITHOUT_DEPENDENCIES = (GENAI,)
_INSTALLED, _FAILED = ".installed", "failed.txt"


def folder(name: str) -> Path:
    """Return the folder of an environment, within that of Tidal."""
    return Path(sys.prefix) / "peers" / name


def python(name: str) -> Path:
    """Return the interpreter of an environment."""
    return folder(name) / "bin" / "python"


def constraints(name: str) -> Path:
    """Return the file with the versions of all packages of an environment."""
    return Path(__file__).with_name(f"{name}.txt")


def install(name: str, torch_index: str = "") -> None:
    """Install an environment unless it is installed with these versions; a failure's reason is stored in its folder.

    Args:
        name: Name of the environment.
        torch_index: URL of a package index that has torch for CPUs; "": torch is installed from where pip finds it.
    """
    pinned = constraints(name).read_text(encoding="utf-8")
    done = folder(name) / _INSTALLED
    if done.exists() and done.read_text(encoding="utf-8") == pinned:
        return
    progress(f"installing the environment of peers '{name}'")
    venv.create(folder(name), clear=True, with_pip=True)
    command = [str(python(name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--extra-index-url", torch_index] if torch_index else []
    if name in _WITHOUT_DEPENDENCIES:
        command += ["--no-deps", "--requirement", str(constraints(name))]
    else:
        command += ["--constraint", str(constraints(name)), *PACKAGES[name]]
    ended = subprocess.run(command, check=False, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["pip failed"])[-1]
        (folder(name) / _FAILED).write_text(last, encoding="utf-8")
        progress(f"environment '{name}' could not be installed: {last}")
        return
    (folder(name) / _FAILED).unlink(missing_ok=True)
    done.write_text(pinned, encoding="utf-8")


def why_not(name: str) -> str:
    """Return why an environment cannot be used; "" if it is installed."""
    if (folder(name) / _INSTALLED).exists():
        return ""
    failed = folder(name) / _FAILED
    return failed.read_text(encoding="utf-8") if failed.exists() else "it was not installed: run make peers"
