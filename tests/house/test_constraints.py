"""The pinned packages can be installed where Tidal can."""

from __future__ import annotations

from importlib.metadata import distributions

from packaging.specifiers import SpecifierSet

#: The oldest Python 3.11 that a maintained distribution has: that of Debian 12.
OLDEST = "3.11.2"


def test_every_installed_package_accepts_the_oldest_python() -> None:
    required = {each.metadata["Name"]: each.metadata.get("Requires-Python") or "" for each in distributions()}
    assert len(required) > 100
    assert {name: needs for name, needs in required.items() if not SpecifierSet(needs).contains(OLDEST)} == {}
