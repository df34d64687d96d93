"""Protection of tritonserver from requests that could end it, by the weaknesses of its release.

Releases before 26.07 are guarded: a library preloaded into tritonserver refuses oversized, finely chunked, compressed
and deeply nested HTTP bodies and large gRPC messages before the server reads them, and gives the server's threads
stacks that are large enough for the rest. A proxy could do the same at the cost of another hop per request; the library
adds a function call to each read.
"""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidal.errors import TidalError
from tidal.http_guard.library import BUILD_COMMAND, LIBRARY
from tidal.server.installation import TritonInstallation
from tidal.server.releases import SECURE_SINCE, has_option, installed_version, release_name

#: Triton's own default of --http-max-input-size, in bytes.
MAX_INPUT_SIZE = 64 << 20
#: Largest gRPC message in bytes; reading it needs 2.5 times as much memory. Triton's own limit is 2 GiB.
MAX_MESSAGE_SIZE = 256 << 20
_OPTION = "--http-max-input-size"
# Stack of a thread of a guarded server. Of what the guard accepts, Triton 2.51 keeps on it twice a form-encoded body of
# up to 4 MiB, and 16 bytes for each chunk of a body: at most a million chunks.
_GUARDED_STACK = 64 << 20
# Without the guard: twice the largest form-encoded body that does not end the server.
_STACK = 256 << 20


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Largest sizes of requests.

    Attributes:
        http_body: Largest HTTP request body in bytes.
        grpc_message: Largest gRPC message in bytes.
    """

    http_body: int = MAX_INPUT_SIZE
    grpc_message: int = MAX_MESSAGE_SIZE


@dataclass(frozen=True, slots=True)
class Protection:
    """How a server is started so that a request cannot end it.

    Attributes:
        options: Options for its command line.
        environment: Additional variables of its environment.
        stack_bytes: Soft stack limit of its process in bytes; None leaves it unchanged.
        guarded: Whether the HTTP guard is preloaded.
        lacking: Missing protection and its remedy, one sentence each; empty if nothing is missing.
    """

    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    stack_bytes: int | None = None
    guarded: bool = False
    lacking: str = ""


def protection(installation: TritonInstallation, limits: RequestLimits | None = None) -> Protection:
    """The protection that an installation needs, by its release.

    Args:
        installation: Installation of tritonserver.
        limits: Largest sizes of requests; None for the defaults.
    """
    limits = limits or RequestLimits()
    return decide(installed_version(installation), has_option(installation, _OPTION), guard(), limits)


def decide(version: str | None, limits_bodies: bool, library: Path | None, limits: RequestLimits) -> Protection:
    """The protection that a server needs.

    Args:
        version: Version of the server; None where it is unknown.
        limits_bodies: Whether it has the option --http-max-input-size.
        library: Path of the HTTP guard; None where it is not built.
        limits: Largest sizes of requests.
    """
    name = release_name(version) if version is not None else None
    options = (f"{_OPTION}={limits.http_body}",) if limits_bodies else ()
    if name is not None and name >= SECURE_SINCE and options:
        return Protection(options)
    if library is None:
        why = (
            f"the HTTP guard is not built: an HTTP body above {_STACK >> 21} MiB, or a small one that is deeply "
            f"nested, finely chunked or compressed, can end tritonserver: run {BUILD_COMMAND}"
        )
        return Protection(options, {}, _STACK, lacking=why)
    return Protection(options, guard_environment(library, limits), guarded=True)


def with_guard_in(folder: Path, found: Protection, limits: RequestLimits) -> Protection:
    """The same protection with a copy of the guard in a folder, which then is self-contained."""
    if not found.guarded:
        return found
    copy = folder.resolve() / LIBRARY.file.name
    shutil.copy2(LIBRARY.file, copy)
    return replace(found, environment=guard_environment(copy, limits))


def guard() -> Path | None:
    """Path of the HTTP guard; None where it is not built from the present sources."""
    try:
        return LIBRARY.file if LIBRARY.is_current() else None
    except TidalError:
        return None


def guard_environment(library: Path, limits: RequestLimits) -> dict[str, str]:
    """Environment in which tritonserver loads the guard; the guard removes it, so that children do not inherit it."""
    before = os.environ.get("LD_PRELOAD", "")
    return {
        "LD_PRELOAD": os.pathsep.join(filter(None, [str(library), before])),
        "TIDAL_LD_PRELOAD": before,
        "TIDAL_HTTP_MAX_BODY": str(limits.http_body),
        "TIDAL_GRPC_MAX_MESSAGE": str(limits.grpc_message),
        "TIDAL_THREAD_STACK": str(_GUARDED_STACK),
    }


def raise_stack_limit(stack_bytes: int) -> None:
    """Raise this process's soft stack limit, the default for its threads, as far as the hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    soft = stack_bytes if hard == resource.RLIM_INFINITY else min(stack_bytes, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
