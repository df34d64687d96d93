"""The ensembles of `model_repository` over tiny models with the names of their steps, served by `tidal serve`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.cascades import LARGE, SMALL, Cascades
from testing.pets import Base
from testing.vision import Vision
from tests.otas.served.conftest import vision
from tests.pets.served.conftest import base
from tests.tabi.conftest import cascades
from tidal.server.child import RunningServer, tidal_serve

__all__ = ["base", "cascades", "vision"]

ENSEMBLES = ("image_to_label", "text_to_checked_label", "text_to_label")
CHECKS = ("adapter_1", "lora_0")
IMAGE_TASKS = {"animals": 3, "moods": 2}
# Above the confidence of about half of the texts.
_CUTOFF = 0.6
_COMMITTED = Path(__file__).parents[2] / "model_repository"


@pytest.fixture(scope="session")
def server(
    cascades: Cascades, base: Base, vision: Vision, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("ensembles")
    for level in (SMALL, LARGE):
        cascades.copy_level(repository, level)
    cascades.copy_level(repository, LARGE, "intents")
    cascades.publish(repository, "intents_cascade", _CUTOFF)
    checks = base.copy(repository, "encoder")
    for task in CHECKS:
        kind, _, seed = task.rpartition("_")
        base.add(checks, kind, int(seed))
    images = vision.copy(repository, "digits")
    for task, classes in IMAGE_TASKS.items():
        vision.add(images, task, classes)
    for name in ENSEMBLES:
        shutil.copytree(_COMMITTED / name, repository / name)
    # Only the ensembles are named: `tidal serve` adds the models of their steps.
    named = [part for name in ENSEMBLES for part in ("--model", name)]
    with tidal_serve(repository, "--exit-timeout", "3", *named) as running:
        yield running


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: RunningServer) -> str:
    """The server over each protocol in turn."""
    return str(getattr(server, request.param))
