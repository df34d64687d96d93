"""A tiny vision transformer that is built once, and a real server with models over it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from testing.config import parameter
from testing.metrics import Publishing
from testing.servers import RunningServer, running_server
from testing.vision import Vision, publish_tiny
from tidal.tasks.folder import tasks_folder

TASKS = {"animals": 3, "digits": 10, "moods": 2}


@pytest.fixture(scope="session")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Vision:
    return publish_tiny(tmp_path_factory.mktemp("otas"))


@dataclass(frozen=True)
class Served(Publishing):
    """A server with `vit`, whose config is minimal; `paper`, with the published policy; `prompts`, with only γ 2."""

    system = "otas"
    server: RunningServer

    def folder(self, model: str) -> Path:
        return tasks_folder(self.server.repository / model)


@pytest.fixture(scope="package")
def served(vision: Vision, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    repository = tmp_path_factory.mktemp("repository")
    prompts = parameter("policy", "fixed") + parameter("gamma", 2)
    for folder in (
        vision.copy(
            repository,
            "vit",
            config='backend: "otas"\n',
            more=parameter("max_megapixels", 1) + parameter("max_image_mb", 1),
        ),
        vision.copy(repository, "paper", more=parameter("policy", "paper")),
        vision.copy(repository, "prompts", more=prompts),
    ):
        for task, classes in TASKS.items():
            vision.add(folder, task, classes)
    with running_server(repository) as server:
        yield Served(server)


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, served: Served) -> str:
    """URL of the server for each protocol."""
    return f"{request.param}://{getattr(served.server, request.param)}"
