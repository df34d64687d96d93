"""Differences between releases of tritonserver, for the launch, `tidal doctor` and the tests of the image.

Checked against the release notes and containers' documentation of each release, NVIDIA's security bulletins (answers
5687, 5691, 5723, 5734, 5816, 5828, 5848, 5853, 5865 and 5875) and the records of the CVEs. Only 2.51.0 is executed by
Tidal's tests.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tidal.server.installation import TritonInstallation

#: Version of tritonserver in each release of nvidia-pytriton that Tidal accepts.
_PYTRITON = {"0.7.0": "2.51.0"}
_TRITON_2_51 = (2, 51)
_RELEASE_OF_2_51 = (24, 10)

#: The first release without any vulnerability in the table below.
SECURE_SINCE = "26.07"
GUARD, KEY, NOTHING = "HTTP guard", "admin key", ""


@dataclass(frozen=True, slots=True)
class Release:
    """A release of NVIDIA's Triton image.

    Attributes:
        name: Year and month of the image, such as `26.11`.
        version: Version of tritonserver in it.
        python: Version of Python that its stub of the Python backend is built for.
        tensorrt: Version of TensorRT in the image; plans for Triton's own backend (`native: true`) must be built with
            the same. None where the documentation does not state it.
        executed: Whether Tidal's tests run against this tritonserver.
    """

    name: str
    version: str
    python: str
    tensorrt: str | None
    executed: bool = False


RELEASES = (
    Release("24.10", "2.51.0", "3.10", "10.4", executed=True),
    Release("25.10", "2.62.0", "3.12", None),
    Release("25.12", "2.64.0", "3.12", None),
    Release("26.04", "2.68.0", "3.12", "10.16"),
    Release("26.07", "2.71.0", "3.12", "11.1"),
    Release("26.11", "2.75.0", "3.12", None),
)


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """Known vulnerabilities of tritonserver that one release fixes and that have one protection in common.

    Attributes:
        names: CVE numbers.
        fixed_in: First release without them.
        what: Possible effect of a request.
        protection: Part of Tidal that protects an older server; empty where none does.
    """

    names: tuple[str, ...]
    fixed_in: str
    what: str
    protection: str


def _cve(year: int, *numbers: int) -> tuple[str, ...]:
    return tuple(f"CVE-{year}-{number}" for number in numbers)


VULNERABILITIES = (
    Vulnerability(_cve(2025, 23325), "25.05", "uncontrolled recursion (deeply nested JSON)", GUARD),
    Vulnerability(_cve(2025, 23323, 23324, 23326, 23327), "25.05", "integer overflow in an invalid request", NOTHING),
    Vulnerability(_cve(2025, 23322), "25.06", "double free when a stream is cancelled", NOTHING),
    Vulnerability(_cve(2025, 23331), "25.06", "excessive allocation by an invalid request", NOTHING),
    Vulnerability(_cve(2025, 23310, 23311), "25.07", "stack overflow by a large or chunked HTTP body", GUARD),
    Vulnerability(_cve(2025, 23317), "25.07", "heap overflow in the HTTP server", NOTHING),
    Vulnerability(
        _cve(2025, 23318, 23319, 23320, 23333, 23334), "25.07", "out-of-bounds access to stubs' shared memory", KEY
    ),
    Vulnerability(_cve(2025, 23321), "25.07", "division by zero in an invalid request", NOTHING),
    Vulnerability(_cve(2025, 23316), "25.08", "code execution by a model's name in model control", KEY),
    Vulnerability(_cve(2025, 23328), "25.08", "out-of-bounds write by a crafted input", NOTHING),
    Vulnerability(_cve(2025, 23329), "25.08", "access to the Python backend's shared memory", KEY),
    Vulnerability(_cve(2025, 33202), "25.09", "stack overflow by a very large payload", GUARD),
    Vulnerability(_cve(2025, 33201), "25.10", "very large payloads", GUARD),
    Vulnerability(_cve(2025, 33211), "25.10", "unchecked quantity in an input", NOTHING),
    Vulnerability(_cve(2026, 24175), "26.02", "uncaught exception by a malformed HTTP header", NOTHING),
    Vulnerability(_cve(2026, 24146, 24173, 24174), "26.02", "crash by a malformed request", NOTHING),
    Vulnerability(_cve(2026, 24147), "26.02", "path traversal by an uploaded model configuration", KEY),
    Vulnerability(_cve(2026, 24206, 24207), "26.03", "bypass of the keys of restricted endpoints", NOTHING),
    Vulnerability(_cve(2026, 24208, 24209, 24210), "26.03", "path traversal, integer overflow", NOTHING),
    Vulnerability(_cve(2026, 24264), "26.04", "decompression of highly compressed HTTP bodies", GUARD),
    Vulnerability(_cve(2026, 24266, 47625), "26.04", "use after free, missing authorization", NOTHING),
    Vulnerability(_cve(2026, 47476, 47477, 47479), "26.05", "stack overflow, resource consumption", NOTHING),
    Vulnerability(_cve(2026, 47478, 47480, 47482), "26.05", "crashes, leaked memory", NOTHING),
    Vulnerability(_cve(2026, 47481), "26.05", "bypass of authentication", NOTHING),
    Vulnerability(_cve(2026, 47606, 47627, 47628, 47629, 47630), "26.06", "path traversal, resource use", NOTHING),
    Vulnerability(_cve(2026, 16497), "26.07", "excessive iteration", NOTHING),
)


def release_name(version: str) -> str | None:
    """Release of NVIDIA's image with a version of tritonserver, such as `26.11` for `2.75.0`; None where unknown.

    A minor version of tritonserver has been released each month since 2.51 (24.10), except 25.07, which is 2.59.1.
    """
    for release in RELEASES:
        if release.version == version:
            return release.name
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        return None
    major, minor, patch = map(int, found.groups())
    if (major, minor) < _TRITON_2_51 or major != _TRITON_2_51[0]:
        return None
    months = minor - _TRITON_2_51[1] + (1 if minor >= 60 or (minor, patch) >= (59, 1) else 0)
    month = _RELEASE_OF_2_51[1] - 1 + months
    return f"{_RELEASE_OF_2_51[0] + month // 12}.{month % 12 + 1:02}"


def known_vulnerabilities(version: str) -> tuple[Vulnerability, ...]:
    """Known vulnerabilities of a version of tritonserver; all for one before 2.51 or one that cannot be parsed."""
    name = release_name(version) or "0"
    return tuple(each for each in VULNERABILITIES if name < each.fixed_in)


def installed_version(installation: TritonInstallation) -> str | None:
    """Version of an installed tritonserver by its package or image; None where neither states it.

    The server itself has no option that prints its version.
    """
    if installation.source == "nvidia-pytriton":
        from importlib.metadata import version

        return _PYTRITON.get(version("nvidia-pytriton"))
    for root in (
        installation.binary.parent.parent,
        installation.python_backend.parent.parent,
        Path("/opt/tritonserver"),
    ):
        stated = root / "TRITON_VERSION"
        if stated.is_file():
            return stated.read_text().strip()
    return None


def has_option(installation: TritonInstallation, option: str) -> bool:
    """Whether a tritonserver accepts an option, by its own `--help`."""
    try:
        done = subprocess.run(
            [str(installation.binary), "--help"],
            env=installation.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return re.search(rf"^\s*{re.escape(option)}\b", done.stdout + done.stderr, re.MULTILINE) is not None
