"""Releases of Triton: names, vulnerabilities, and the protection that each requires."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidal.server.exposure import describe_release
from tidal.server.extra_options import check_extra, grpc_tls
from tidal.server.installation import find_installation
from tidal.server.protection import RequestLimits, decide
from tidal.server.releases import (
    RELEASES,
    SECURE_SINCE,
    VULNERABILITIES,
    has_option,
    installed_version,
    known_vulnerabilities,
    release_name,
)

GUARD = Path("/guard.so")


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("2.51.0", "24.10"),
        ("2.54.0", "25.01"),
        ("2.59.0", "25.06"),
        ("2.59.1", "25.07"),
        ("2.60.0", "25.08"),
        ("2.69.0", "26.05"),
        ("2.71.0", "26.07"),
        ("2.75.0", "26.11"),
        ("2.76.0", "26.12"),
        ("2.50.0", None),
        ("3.0.0", None),
        ("unknown", None),
    ],
)
def test_versions_map_to_releases(version: str, name: str | None) -> None:
    assert release_name(version) == name


def test_the_table_of_releases_agrees_with_the_rule() -> None:
    for release in RELEASES:
        months = int(release.name[:2]) * 12 + int(release.name[3:]) - (24 * 12 + 10)
        assert release.version == f"2.{51 + months - (1 if months > 9 else 0)}.0"


def test_vulnerabilities_apply_before_the_release_that_fixes_them() -> None:
    def names(version: str) -> set[str]:
        return {name for each in known_vulnerabilities(version) for name in each.names}

    every = names("2.51.0")
    assert every >= {f"CVE-2025-{n}" for n in (23310, 23311, 23317, 23319, 23320, 23334)}
    assert every - names("2.59.1") >= {f"CVE-2025-{n}" for n in (23310, 23311, 23317, 23319, 23320, 23334)}
    assert "CVE-2025-33201" in names("2.61.0") - names("2.62.0")
    assert names("2.70.0") == {"CVE-2026-16497"}
    assert names("2.71.0") == names("2.75.0") == set()
    assert names("2.40.0") == names("") == every
    assert len(every) == sum(len(each.names) for each in VULNERABILITIES)


@pytest.mark.parametrize(
    ("version", "has_limit", "guard", "options", "guarded", "stack"),
    [
        ("2.51.0", False, GUARD, (), True, None),
        ("2.51.0", False, None, (), False, 256 << 20),
        ("2.66.0", True, GUARD, ("--http-max-input-size=5",), True, None),
        ("2.75.0", True, GUARD, ("--http-max-input-size=5",), False, None),
        ("2.75.0", True, None, ("--http-max-input-size=5",), False, None),
        (None, False, GUARD, (), True, None),
        (None, True, GUARD, ("--http-max-input-size=5",), True, None),
    ],
)
def test_a_server_is_guarded_where_its_release_requires_it(
    version: str | None, has_limit: bool, guard: Path | None, options: tuple[str, ...], guarded: bool, stack: int | None
) -> None:
    found = decide(version, has_limit, guard, RequestLimits(5, 6))
    assert (found.options, found.guarded, found.stack_bytes) == (options, guarded, stack)
    assert bool(found.lacking) == (stack is not None)
    assert ("TIDAL_HTTP_MAX_BODY" in found.environment) == guarded


def test_descriptions_of_releases_say_what_to_do() -> None:
    assert describe_release("2.75.0")[1] == ""
    found, advice = describe_release("2.62.0")
    assert "25.10 (2.62.0)" in found
    assert "documentation only" in found
    assert SECURE_SINCE in advice
    assert describe_release(None)[1]


def test_the_embedded_server_is_recognised() -> None:
    installation = find_installation()
    if installation.source == "nvidia-pytriton":
        assert installed_version(installation) == "2.51.0"
        assert not has_option(installation, "--http-max-input-size")
    assert has_option(installation, "--http-port")


def test_grpc_tls_is_detected_in_both_spellings() -> None:
    assert grpc_tls(("--log-verbose=1", "--grpc-use-ssl=true"))
    assert grpc_tls(("--grpc-use-ssl-mutual", "1"))
    assert not grpc_tls(("--grpc-use-ssl=true", "--grpc-use-ssl=false"))
    assert not grpc_tls(("--grpc-server-cert", "--grpc-use-ssl"))
    check_extra(("--log-verbose=1", "--model-load-thread-count", "8", "--allow-http=true", "--reuse-grpc-port=1"))
