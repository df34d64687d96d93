"""Builds in this folder do not depend on the precision of profiles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testing.profiles import quick_profiles


@pytest.fixture(scope="package", autouse=True)
def _quick() -> Iterator[None]:
    with quick_profiles():
        yield
