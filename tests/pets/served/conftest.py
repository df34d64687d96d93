"""A tiny random base, built once, tasks of all kinds, and a real server over them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.arlo.conftest import parameter
from tests.metrics import Publishing
from tests.models import make_tiny_classifier
from tests.pets.engine.truth import Truth
from tests.servers import RunningServer, running_server
from tidal.pets.base import load_base_layers
from tidal.pets.tasks.folder import add_task
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import BaseLayers, FloatArray, Head, TaskTerms
from tidal.tasks.folder import tasks_folder
from tidal_builders.pets.build import build_pets
from tidal_builders.pets.report import PetsReport
from tidal_builders.pets.typical import TYPICAL_KINDS, typical_task
from tidal_builders.specs import parse_spec

MAX_LENGTH, MAX_BATCH = 64, 16
DEAR = ("adapter", "diff_pruning")
MADE = Provenance(format="trained", source="a test")


@dataclass
class Base:
    """The source's folder, a repository with the model `base` built from it, and how its tasks have to answer."""

    source: Path
    repository: Path
    report: PetsReport
    _truths: dict[tuple[str, int], Truth] = field(default_factory=dict)

    @cached_property
    def layers(self) -> BaseLayers:
        return load_base_layers(self.repository / "base/1")

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.source)

    @cached_property
    def model(self) -> Any:
        """The unmodified source model."""
        from transformers import AutoModel

        return AutoModel.from_pretrained(self.source).eval()

    def copy(self, repository: Path, name: str, *, extra_config: str = "", config: str | None = None) -> Path:
        """Add the built base to another repository, with more in its config or another one; its folder of tasks."""
        shutil.copytree(self.repository / "base", repository / name)
        file = repository / name / "config.pbtxt"
        text = file.read_text().replace('name: "base"\n', "") if config is None else config
        file.write_text(text + extra_config)
        return tasks_folder(repository / name)

    def terms(self, kind: str, seed: int) -> TaskTerms:
        """A task with 2 to 5 classes."""
        terms = typical_task(kind, self.layers, seed)
        draw = np.random.default_rng(seed)
        labels = tuple(f"{kind} {seed} {number}" for number in range(2 + seed % 4))
        weight = draw.normal(size=(len(labels), self.layers.width)).astype(np.float32)
        return replace(terms, head=Head(weight, draw.normal(size=len(labels)).astype(np.float32), labels))

    def add(self, tasks: Path, kind: str, seed: int, name: str | None = None, *, replace: bool = False) -> str:
        """Add that task to a folder; its name, by default `<kind>_<seed>`."""
        name = name or f"{kind}_{seed}"
        add_task(tasks, name, kind, self.terms(kind, seed), self.layers, MADE, replace=replace)
        return name

    def logits(self, task: str, text: str, pair: str | None = None) -> FloatArray:
        """What the task `<kind>_<seed>`, merged into a copy of the unmodified model, answers to one text alone."""
        kind, _, seed = task.rpartition("_")
        key = kind, int(seed)
        if key not in self._truths:
            self._truths[key] = Truth(self.model, self.terms(*key))
        encoded = self.tokenizer(text, pair)
        return self._truths[key].logits(encoded["input_ids"], encoded["token_type_ids"])


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("pets")
    source = make_tiny_classifier(folder / "source", max_position=MAX_LENGTH)
    return Base(source, folder / "repository", build(source, folder / "repository", "base"))


def build(source: Path, repository: Path, name: str, **fields: Any) -> PetsReport:
    """Build a model of the tiny base."""
    spec = {"kind": "pets", "name": name, "model": str(source), "max_batch": MAX_BATCH, "max_tokens": 1024}
    parsed: Any = parse_spec({**spec, "profile_seconds": 0.1, **fields}, "test")
    return build_pets(parsed, repository, spec_file=repository / "base.yaml")


def _make_dear(manifest: Path) -> None:
    """Have a profile say that a pass takes a millisecond, the terms of DEAR kinds 200, and others' none."""
    content = json.loads(manifest.read_text())
    profile = content["profile"]

    def fill(grid: dict[str, Any], name: str, value: float) -> None:
        grid[name] = [[value] * len(row) for row in grid[name]]

    fill(profile["shared"], "median_ms", 1.0)
    for kind, grid in profile["terms_ms"].items():
        fill(grid, "values", 200.0 if kind in DEAR else 0.0)
    manifest.write_text(json.dumps(content))


def _make_proportional(manifest: Path) -> None:
    """Have a profile say that a pass takes a tenth of a millisecond for each token of its longest query, no more."""
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
    """A server with the models `base`; `full`, in batches of 16; `small`, with room for three tasks or so; `hot`, with
    merged copies and a profile by which the terms of DEAR kinds cost far more than a pass; `pairs`, in batches of two
    at most and a profile by which a pass takes as long as its longest query; and `torch`, the same base with another
    engine."""

    system = "pets"
    server: RunningServer
    tasks: Sequence[str]
    budget: int

    def folder(self, model: str) -> Path:
        return tasks_folder(self.server.repository / model)


@pytest.fixture(scope="module")
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
        tasks_folder(repository / "torch"),
    ]
    build(base.source, repository, "torch", engine="torch", threads=1)
    _make_dear(repository / "hot/1/manifest.json")
    _make_proportional(repository / "pairs/1/manifest.json")
    names = [f"{kind}_{seed}" for seed in range(3) for kind in TYPICAL_KINDS]
    for tasks in folders:
        for name in names:
            kind, _, seed = name.rpartition("_")
            base.add(tasks, kind, int(seed))
    with running_server(repository) as server:
        yield Served(server, names, int(3 * largest))


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, served: Served) -> str:
    """The server over each protocol in turn."""
    return f"{request.param}://{getattr(served.server, request.param)}"
