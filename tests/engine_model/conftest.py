"""A partitioned tiny classifier, and a real server over the models of its runtimes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.classifiers import build_classifier
from testing.models import make_tiny_classifier
from testing.servers import RunningServer, running_server

# Cores that the server may use.
CORES = frozenset(sorted(os.sched_getaffinity(0))[:2])
# The shortest valid config: the backend adds the tensors.
LINE = 'backend: "engine"\n'
TOGETHER = f"{LINE}max_batch_size: 4 dynamic_batching {{ max_queue_delay_microseconds: 500000 }}\n"


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_classifier(tmp_path_factory.mktemp("source") / "tiny", max_position=64)


@pytest.fixture(scope="session")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the partitioned model `tiny`. Not to be changed."""
    repository = tmp_path_factory.mktemp("built")
    fields = {"placement": "partitioned", "outputs": ["logits", "attention_received"]}
    build_classifier(repository, source, lengths=[16, 32], max_batch=4, **fields)
    return repository


@pytest.fixture(scope="module")
def server(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server on `CORES` with the runtime models, and copies of the shorter one: `line` and `together`, not pinned."""
    repository = tmp_path_factory.mktemp("repository")
    for name in ("tiny_len16", "tiny_len32"):
        shutil.copytree(built / name, repository / name)
    for name, config in (("line", LINE), ("together", TOGETHER)):
        shutil.copytree(built / "tiny_len16", repository / name)
        not_pinned = 'parameters { key: "pin" value { string_value: "false" } }\n'
        (repository / name / "config.pbtxt").write_text(config + not_pinned)
    here = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    try:
        with running_server(repository) as running:
            os.sched_setaffinity(0, here)
            yield running
    finally:
        os.sched_setaffinity(0, here)


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: RunningServer) -> str:
    """URL of the server, over each protocol."""
    return f"{request.param}://{getattr(server, request.param)}"
