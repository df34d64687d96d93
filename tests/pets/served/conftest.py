"""A tiny random base that is built once, tasks of all kinds, and a real server with models over them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testing.config import parameter
from testing.metrics import Publishing
from testing.pets import MAX_BATCH, Base, build, tiny_base
from testing.servers import RunningServer, running_server
from tests.pets.served.saved_sources import Source, save_sources
from tidal.tasks.folder import tasks_folder
from tidal_builders.pets.typical import TYPICAL_KINDS

HUB = Path(__file__).parents[1] / "importing/adapterhub_saved/base"
EXPENSIVE = ("adapter", "diff_pruning")


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return tiny_base(tmp_path_factory)


def _set_expensive_terms(manifest: Path) -> None:
    """Set a profile's latencies: 1 ms for a pass, 200 ms for the terms of EXPENSIVE kinds, 0 ms for other terms."""
    content = json.loads(manifest.read_text())
    profile = content["profile"]

    def fill(grid: dict[str, Any], name: str, value: float) -> None:
        grid[name] = [[value] * len(row) for row in grid[name]]

    fill(profile["shared"], "median_ms", 1.0)
    for kind, grid in profile["terms_ms"].items():
        fill(grid, "values", 200.0 if kind in EXPENSIVE else 0.0)
    manifest.write_text(json.dumps(content))


def _set_proportional_latency(manifest: Path) -> None:
    """Set a profile's latencies: 0.1 ms for each token of a pass's longest query, 0 ms for terms."""
    content = json.loads(manifest.read_text())
    profile = content["profile"]
    shared = profile["shared"]
    shared["median_ms"] = [
        [length / 10] * len(row) for length, row in zip(shared["lengths"], shared["median_ms"], strict=True)
    ]
    for grid in profile["terms_ms"].values():
        grid["values"] = [[0.0] * len(row) for row in grid["values"]]
    manifest.write_text(json.dumps(content))


@dataclass(frozen=True)
class Served(Publishing):
    """A running server with the models `base`; `full`, with fixed batches of 16; `small`, with memory for about three
    tasks; `hot`, with merged copies and a profile in which the terms of EXPENSIVE kinds cost far more than a pass;
    `pairs`, with batches of at most two and a profile in which a pass takes as long as its longest query; `torch`, the
    same base with another engine; `strided` and `cut`, which read longer texts in windows or truncate them; and `hub`,
    built from the base of AdapterHub's adapters, without tasks.

    Attributes:
        server: The server.
        tasks: Names of the tasks that every model except `hub` has.
        budget: Bytes of task memory of the model `small`.
    """

    system = "pets"
    server: RunningServer
    tasks: Sequence[str]
    budget: int

    def url(self, protocol: str) -> str:
        return f"{protocol}://{getattr(self.server, protocol)}"

    def folder(self, model: str) -> Path:
        return tasks_folder(self.server.repository / model)


@pytest.fixture(scope="package")
def served(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    repository = tmp_path_factory.mktemp("repository")
    largest = max(base.terms(kind, 0).bytes for kind in TYPICAL_KINDS)
    small = parameter("task_memory_mb", 3 * largest / (1 << 20))
    fixed = parameter("batching", "fixed") + parameter("fixed_size", MAX_BATCH)
    folders = [
        base.copy(repository, "base"),
        base.copy(repository, "full", extra_config=fixed),
        base.copy(repository, "small", extra_config=small),
        base.copy(repository, "hot", extra_config=parameter("merged_copies", 3)),
        base.copy(repository, "pairs", extra_config=parameter("max_batch", 2)),
        base.copy(repository, "strided", extra_config=parameter("truncate", "stride")),
        base.copy(repository, "cut", extra_config=parameter("truncate", "true")),
        tasks_folder(repository / "torch"),
    ]
    build(base.source, repository, "torch", engine="torch", threads=1, max_batch=4)
    build(HUB, repository, "hub", max_batch=2)
    _set_expensive_terms(repository / "hot/1/manifest.json")
    _set_proportional_latency(repository / "pairs/1/manifest.json")
    names = [f"{kind}_{seed}" for seed in range(3) for kind in TYPICAL_KINDS]
    for tasks in folders:
        for name in names:
            kind, _, seed = name.rpartition("_")
            base.add(tasks, kind, int(seed))
    with running_server(repository) as server:
        yield Served(server, names, int(3 * largest))


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, served: Served) -> str:
    """URL of the server for each protocol."""
    return served.url(request.param)


@pytest.fixture(scope="package")
def sources(base: Base, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    """Fine-tuned classifiers of the base to import, by name."""
    return save_sources(base.source, tmp_path_factory.mktemp("sources"))
