"""Cascades of tiny classifiers with random weights, assembled by hand, for a real server."""

from __future__ import annotations

import pytest

from testing.cascades import Cascades, built_levels
from tests.tabi.serving import FakeLevels


@pytest.fixture(scope="session")
def cascades(tmp_path_factory: pytest.TempPathFactory) -> Cascades:
    return Cascades(built_levels(tmp_path_factory))


@pytest.fixture(params=["models", "in_process"])
def placement(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether fake levels are models of the server or run in the cascade's process."""
    monkeypatch.setattr(FakeLevels, "in_process", request.param == "in_process")
    return str(request.param)
