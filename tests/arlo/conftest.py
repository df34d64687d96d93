"""A tiny classifier with random weights, built once, and a real server over it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from testing.classifiers import build_classifier
from testing.config import parameter
from testing.models import make_tiny_classifier
from testing.once import built_once
from testing.servers import RunningServer, running_server

MAX_LENGTH = 64
LENGTHS = [16, 32, MAX_LENGTH]
OUTPUTS = ["logits", "attention_received"]


@dataclass(frozen=True, slots=True)
class Built:
    """The source model's folder, and a repository with the model `tiny` built from it."""

    source: Path
    repository: Path

    def copy(self, target: Path, name: str, *, extra_config: str = "", config: str | None = None) -> None:
        """Copy the built model to another repository under a name; append to its config or replace it."""
        shutil.copytree(self.repository / "tiny", target / name)
        file = target / name / "config.pbtxt"
        text = file.read_text().replace('name: "tiny"\n', "") if config is None else config
        file.write_text(text + extra_config)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_once(
        tmp_path_factory, "arlo_source", lambda folder: make_tiny_classifier(folder, max_position=MAX_LENGTH)
    )


@pytest.fixture(scope="session")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    fields = {"lengths": LENGTHS, "outputs": OUTPUTS, "max_batch": 16}
    return Built(
        source,
        built_once(tmp_path_factory, "arlo_built", lambda folder: build_classifier(folder, source, **fields)),
    )


@pytest.fixture(scope="session")
def partitioned(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the partitioned model `tiny`. Not to be changed."""
    fields = {"lengths": LENGTHS, "outputs": OUTPUTS, "placement": "partitioned", "slo_ms": 2000, "max_batch": 1}
    return built_once(tmp_path_factory, "arlo_partitioned", lambda folder: build_classifier(folder, source, **fields))


@pytest.fixture(scope="package")
def server(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Models: `tiny`; `short` with truncation; `narrow` with a queue of 8 queries; `line` with a config of one line.

    Tests may add other models to its repository, and remove them again.
    """
    repository = tmp_path_factory.mktemp("repository")
    built.copy(repository, "tiny")
    built.copy(repository, "short", extra_config=parameter("truncate", "true"))
    built.copy(repository, "narrow", extra_config=parameter("max_queue_size", 8))
    built.copy(repository, "line", config='backend: "arlo"\n')
    with running_server(repository) as running:
        yield running


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: RunningServer) -> str:
    """URL of the server, over each protocol."""
    return f"{request.param}://{getattr(server, request.param)}"
