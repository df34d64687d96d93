"""The checks of `tidal doctor`: what this machine has for serving, and how to install what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from tidal.answers import library as core
from tidal.batcher.library import BUILD_COMMAND, LIBRARY
from tidal.device import library_version
from tidal.engines.entries import ENGINES
from tidal.engines.registry import available_kinds, engine_version
from tidal.errors import TidalError
from tidal.flover.native import library as kernels
from tidal.server.cleanup import SHARED_MEMORY, leftovers, orphans
from tidal.server.doctor_check import DoctorCheck
from tidal.server.endpoints import holder_of, is_free
from tidal.server.exposure import Exposure, describe_protection, describe_release, exposures
from tidal.server.installation import TritonInstallation, find_installation
from tidal.server.protection import protection
from tidal.server.releases import installed_version
from tidal.server.state import running_servers
from tidal.server.status_endpoint import read_readiness
from tidal_client.extras import install_command

# A stub starts with a region of 1 MiB and enlarges it for its requests.
_SHM_NEEDED = 64 * 2**20
_MIB = 2**20


def diagnose(*, image: bool = False) -> list[DoctorCheck]:
    """Check everything that serving needs.

    Args:
        image: Whether an image is being built, so that what a machine has is left out; see also `image_checks`.
    """
    checks: list[DoctorCheck] = []
    try:
        installation = find_installation()
    except TidalError as error:
        found, _, advice = str(error).rpartition(": ")
        checks.append(DoctorCheck("tritonserver", "bad", found or advice, advice))
    else:
        checks += [_server(installation), *_security(installation), _stub(installation)]
    checks += [*_engines(), core_check(), kernels_check(), batcher_check()]
    if not image:
        checks += [_gpu(), _shared_memory(), _leftovers(), *_servers_and_ports()]
    return [*checks, *_extras()]


def _server(installation: TritonInstallation) -> DoctorCheck:
    """Start the server without models: it has no option that prints its version, and this shows that it runs."""
    where = f"{installation.binary} ({installation.source})"
    with tempfile.TemporaryDirectory(prefix="tidal-doctor-") as folder:
        command = [str(installation.binary), f"--model-repository={folder}", "--model-control-mode=explicit"]
        command += ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"]
        process = subprocess.Popen(
            command,
            env=installation.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        lines = []
        try:
            for line in process.stdout or ():
                lines.append(line.strip())
                version = re.search(r"\| server_version +\| (\S+)", line)
                if version:
                    return DoctorCheck("tritonserver", "ok", f"{version.group(1)}, {where}")
        finally:
            process.kill()
            process.wait()
    last = next((line for line in reversed(lines) if line), "it printed nothing")
    return DoctorCheck("tritonserver", "bad", f"{where} does not start: {last}", "install what the message names")


def _security(installation: TritonInstallation) -> Iterator[DoctorCheck]:
    """Known vulnerabilities of the server's release, and its protection."""
    found, advice = describe_release(installed_version(installation))
    yield DoctorCheck("Triton release", "warning" if advice else "ok", found, advice)
    protected = protection(installation)
    found, advice = describe_protection(protected, exposures(installation, protected))
    yield DoctorCheck("protection", "warning" if advice else "ok", found, advice)


def known_exposures() -> list[Exposure]:
    """Known vulnerabilities of the installed server; empty where none is installed."""
    try:
        installation = find_installation()
    except TidalError:
        return []
    return exposures(installation, protection(installation))


def _stub(installation: TritonInstallation) -> DoctorCheck:
    """Check that the stub loads the libpython of the interpreter whose packages it imports."""
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    listed = subprocess.run(
        ["ldd", str(installation.stub)], env=installation.environment(), capture_output=True, text=True, check=False
    ).stdout
    library = re.search(r"libpython3\S* => (\S+|not found)", listed)
    advice = "use a Python built with --enable-shared, of the version that the stub is for"
    if library is None:
        return DoctorCheck("python stub", "warning", f"{installation.stub}: its libpython cannot be determined", advice)
    if library.group(1) == "not found" or not Path(library.group(1)).exists():
        return DoctorCheck("python stub", "bad", f"{installation.stub} finds no libpython for {python}", advice)
    path = Path(library.group(1)).resolve()
    if not path.is_relative_to(Path(sys.base_prefix).resolve()):
        found = (
            f"loads {path}, which does not belong to this interpreter ({sys.base_prefix}): modules such as ssl may "
            "fail to import"
        )
        return DoctorCheck("python stub", "warning", found, advice)
    return DoctorCheck("python stub", "ok", f"for {python}, with {path}")


def _engines() -> Iterator[DoctorCheck]:
    kinds = available_kinds()
    if not kinds:
        yield DoctorCheck("engines", "bad", "no engine library is installed", install_command("serve"))
    for kind in ENGINES:
        if kind in kinds:
            yield DoctorCheck(f"engine {kind}", "ok", engine_version(kind) or "version unknown")
        else:
            yield DoctorCheck(f"engine {kind}", "note", "not available")


def core_check() -> DoctorCheck:
    """Check whether answers are built by the compiled core."""
    try:
        path = core.library_path()
    except TidalError as error:
        return DoctorCheck("compiled core", "note", str(error))
    if core.library() is not None:
        return DoctorCheck("compiled core", "ok", str(path))
    compiler = "" if shutil.which("g++") else "install g++ 9 or newer, then "
    found = "not built: answers are built in Python, which takes up to 0.1 ms more per request"
    return DoctorCheck("compiled core", "note", found, compiler + core.BUILD_COMMAND)


def kernels_check() -> DoctorCheck:
    """Check whether decoders run on compiled kernels."""
    try:
        path = kernels.library_path()
    except TidalError as error:
        return DoctorCheck("decoder kernels", "note", str(error))
    if path.is_file():
        return DoctorCheck("decoder kernels", "ok", f"{path}; {_kernel_choice()}")
    compiler = "" if shutil.which("g++") else "install g++ 11 or newer, then "
    found = "not built: decoders run in torch alone, at about half the speed"
    return DoctorCheck("decoder kernels", "note", found, compiler + kernels.BUILD_COMMAND)


def _kernel_choice() -> str:
    """The kernels' choices as a build would measure them on this machine now."""
    if library_version("torch") is None:
        return "not measured, as torch is not installed"
    from tidal.flover.native.tuning import measure_kernels

    choice = measure_kernels(len(os.sched_getaffinity(0)))
    return "cannot be loaded" if choice is None else str(choice)


def batcher_check() -> DoctorCheck:
    """Check whether models can use the custom batcher by TRITON_BATCH_STRATEGY_PATH, and its path."""
    try:
        path, current = LIBRARY.file, LIBRARY.is_current()
    except TidalError as error:
        return DoctorCheck("batcher", "note", str(error))
    if current:
        return DoctorCheck("batcher", "ok", str(path))
    if path.exists():
        return DoctorCheck(
            "batcher", "warning", f"{path} was built from other sources", f"{BUILD_COMMAND}, then reload the models"
        )
    compiler = "" if shutil.which("g++") else "install g++ 9 or newer, then "
    return DoctorCheck("batcher", "note", "not built: models cannot use it", compiler + BUILD_COMMAND)


def _gpu() -> DoctorCheck:
    if shutil.which("nvidia-smi") is None:
        return DoctorCheck("GPU", "note", "none: no NVIDIA driver; engines run on the CPU")
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        problem = (answer.stdout + answer.stderr).strip().splitlines()
        return DoctorCheck("GPU", "warning", f"nvidia-smi fails: {problem[0] if problem else 'no message'}")
    return DoctorCheck("GPU", "ok", "; ".join(line.strip() for line in answer.stdout.splitlines() if line.strip()))


def _shared_memory() -> DoctorCheck:
    if not SHARED_MEMORY.is_dir():
        return DoctorCheck(
            "/dev/shm", "bad", "is missing: Python models cannot exchange tensors", "mount a tmpfs there"
        )
    usage = shutil.disk_usage(SHARED_MEMORY)
    found = f"{usage.free // _MIB:,} of {usage.total // _MIB:,} MiB free"
    if usage.free < _SHM_NEEDED:
        return DoctorCheck("/dev/shm", "warning", found, "enlarge it, in a container with --shm-size=1g")
    return DoctorCheck("/dev/shm", "ok", found)


def _leftovers() -> DoctorCheck:
    processes, files = orphans(), leftovers()
    if processes:
        pids = " ".join(str(process.pid) for process in processes)
        return DoctorCheck(
            "leftovers", "warning", f"{len(processes)} Python stubs of ended servers still run", f"kill -9 {pids}"
        )
    if not files:
        return DoctorCheck("leftovers", "ok", "no stubs and no shared memory of ended servers")
    size = sum(path.stat().st_blocks * 512 for path in files if path.exists())
    found = f"{len(files)} shared-memory files of crashed servers, {size / _MIB:.1f} MiB"
    return DoctorCheck("leftovers", "warning", found, f"rm {' '.join(map(str, files))}")


def _servers_and_ports() -> Iterator[DoctorCheck]:
    running = running_servers()
    for state in running:
        readiness = read_readiness(state.status) if state.status else None
        ready = "" if readiness is None else "; ready" if readiness["ready"] else f"; not ready: {readiness['reason']}"
        found = f"Triton {state.version} on {state.http} serves {state.repository} (process {state.pid}){ready}"
        yield DoctorCheck("running server", "note", found)
    own = {
        int(address.rpartition(":")[2]) for s in running for address in (s.http, s.grpc, s.metrics, s.status or ":0")
    }
    for name, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002), ("status", 8004)):
        if is_free("127.0.0.1", port):
            yield DoctorCheck(f"port {port}", "ok", f"free for {name}")
        elif port in own:
            yield DoctorCheck(f"port {port}", "note", "used by a running server of yours")
        else:
            found = f"in use by {holder_of(port) or 'another process'}"
            yield DoctorCheck(f"port {port}", "warning", found, f"tidal serve --{name}-port 0 uses a free one")


def _extras() -> Iterator[DoctorCheck]:
    """Check that all requirements of each extra are installed."""
    wanted: dict[str, list[str]] = {}
    for requirement in metadata.requires("tidal") or ():
        found = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", requirement)
        if found and found.group(1) != "tidal":
            wanted.setdefault(found.group(2), []).append(found.group(1))
    for extra, names in sorted(wanted.items()):
        missing = [name for name in names if library_version(name) is None]
        if missing:
            advice = f"{install_command(extra)} if you need it"
            yield DoctorCheck(f"extra {extra}", "note", f"lacks {', '.join(missing)}", advice)
        else:
            yield DoctorCheck(f"extra {extra}", "ok", "installed")
