"""The checks of `tidal doctor --image`: whether server, Python and TensorRT of an image fit, while it is built."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tidal.device import library_version
from tidal.errors import TidalError
from tidal.server.doctor_check import DoctorCheck
from tidal.server.installation import find_installation
from tidal.server.releases import (
    RELEASES,
    SECURE_SINCE,
    Release,
    installed_version,
    known_vulnerabilities,
    release_name,
)

# Folders in which NVIDIA's images have TensorRT, of both architectures.
_LIBRARIES = (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/opt/tensorrt/lib"))
_PARTS = 3


def installed_image_checks() -> list[DoctorCheck]:
    """Check what this image is made of; empty without a tritonserver, which `diagnose` reports."""
    try:
        installation = find_installation()
    except TidalError:
        return []
    return image_checks(installed_version(installation))


def image_checks(
    version: str | None, python: str | None = None, libraries: Sequence[Path] = _LIBRARIES
) -> list[DoctorCheck]:
    """Check what an image is made of.

    Args:
        version: Version of its tritonserver; None where it is not stated.
        python: Version of its Python, such as `3.12`; None: that of this process.
        libraries: Folders that may contain the image's TensorRT.
    """
    python = python or f"{sys.version_info.major}.{sys.version_info.minor}"
    return [
        _release(version),
        *_python(version, python),
        _tensorrt(library_version("tensorrt"), image_tensorrt(libraries)),
    ]


def image_tensorrt(libraries: Sequence[Path] = _LIBRARIES) -> str | None:
    """Version of the TensorRT that the image's own backend loads, such as `10.16.1`; None if it has none."""
    found = [
        name.group(1)
        for folder in libraries
        if folder.is_dir()
        for path in folder.glob("libnvinfer.so.*")
        if (name := re.fullmatch(r"libnvinfer\.so\.(\d+\.\d+\.\d+)", path.name))
    ]
    return max(found, key=_numbers, default=None)


def _release(version: str | None) -> DoctorCheck:
    advice = f"set TRITON_RELEASE to {SECURE_SINCE} or later"
    if version is None:
        return DoctorCheck("image release", "bad", "the version of tritonserver cannot be determined", advice)
    known = sum(len(each.names) for each in known_vulnerabilities(version))
    name = release_name(version) or "an unknown release"
    if known:
        return DoctorCheck("image release", "bad", f"{name} ({version}) has {known} known vulnerabilities", advice)
    return DoctorCheck("image release", "ok", f"{name} ({version})")


def _python(version: str | None, python: str) -> Iterator[DoctorCheck]:
    release = _documented(version)
    if release is None:
        yield DoctorCheck("image Python", "note", f"{python}; that of the stub is not documented for {version}")
    elif release.python != python:
        found = f"{python}, but the stub of {release.name} is built for {release.python}"
        advice = f"make the environment with the image's own Python {release.python}"
        yield DoctorCheck("image Python", "bad", found, advice)
    else:
        yield DoctorCheck("image Python", "ok", f"{python}, as the stub of {release.name}")


def _tensorrt(installed: str | None, image: str | None) -> DoctorCheck:
    """Check that plans that are built here can be loaded by Triton's own backend (`native: true`)."""
    if installed is None:
        found = f"the image has {image}" if image else "neither the image nor its environment has it"
        return DoctorCheck("image TensorRT", "note", f"{found}; the extra tensorrt is not installed")
    if image is None:
        found = f"{installed} in the environment; the image has none, so `native: true` cannot be served"
        return DoctorCheck("image TensorRT", "note", found)
    if _numbers(installed)[:_PARTS] != _numbers(image)[:_PARTS]:
        found = f"{installed} in the environment, {image} in the image: neither loads plans of the other"
        return DoctorCheck("image TensorRT", "bad", found, f"build with --build-arg TENSORRT_VERSION='{image}.*'")
    return DoctorCheck("image TensorRT", "ok", f"{installed}, as in the image")


def _documented(version: str | None) -> Release | None:
    return next((release for release in RELEASES if release.version == version), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
