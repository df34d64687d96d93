"""What `tidal doctor` reports about a server's release: its name, known vulnerabilities, and protection."""

from __future__ import annotations

from dataclasses import dataclass

from tidal.server.installation import TritonInstallation
from tidal.server.protection import MAX_INPUT_SIZE, Protection
from tidal.server.releases import GUARD, RELEASES, SECURE_SINCE, installed_version, known_vulnerabilities, release_name


@dataclass(frozen=True, slots=True)
class Exposure:
    """Known vulnerabilities that one release fixes.

    Attributes:
        names: CVE numbers.
        fixed_in: First release without them.
        what: Possible effect of a request.
        protected_by: Part of Tidal that protects this server from them; empty where none does.
    """

    names: tuple[str, ...]
    fixed_in: str
    what: str
    protected_by: str


def exposures(installation: TritonInstallation, protected: Protection) -> list[Exposure]:
    """Known vulnerabilities of an installed server as `tidal serve` starts it; all where its version is unknown."""
    return [
        Exposure(
            each.names,
            each.fixed_in,
            each.what,
            "" if each.protection == GUARD and not protected.guarded else each.protection,
        )
        for each in known_vulnerabilities(installed_version(installation) or "")
    ]


def describe_release(version: str | None) -> tuple[str, str]:
    """Describe the release of a version of tritonserver, and what to do about it; the second may be empty."""
    name = release_name(version) if version is not None else None
    if name is None:
        found = f"version {version or 'unknown'}: not a release that Tidal knows; it is protected like the oldest"
        return found, f"serve with NVIDIA's image {SECURE_SINCE} or later"
    known = next((release for release in RELEASES if release.name == name), None)
    executed = "executed by Tidal's tests" if known and known.executed else "checked against its documentation only"
    tensorrt = f", TensorRT {known.tensorrt} in NVIDIA's image" if known and known.tensorrt else ""
    if name >= SECURE_SINCE:
        return f"{name} ({version}){tensorrt}; {executed}; no known vulnerability", ""
    advice = f"for clients that you do not trust serve with NVIDIA's image {SECURE_SINCE} or later"
    return f"{name} ({version}){tensorrt}; {executed}; has known vulnerabilities (listed below)", advice


def describe_protection(protected: Protection, known: list[Exposure]) -> tuple[str, str]:
    """Describe the active protection, and what to do; the second is empty where HTTP requests cannot end the server."""
    if protected.lacking:
        found, _, advice = protected.lacking.rpartition(": ")
        return found, advice
    by = "HTTP guard and admin key" if protected.guarded else "the server's own limit and admin key"
    closed = sum(len(each.names) for each in known if each.protected_by)
    left = sum(len(each.names) for each in known) - closed
    return f"{by}, HTTP bodies up to {MAX_INPUT_SIZE >> 20} MiB; {closed} known CVEs closed, {left} open", ""
