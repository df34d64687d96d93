"""A tiny random PetS base as the builder publishes it, with tasks of every kind and their expected answers."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.models import make_tiny_classifier
from testing.once import built_once
from testing.profiles import quick_profiles
from testing.truth import Truth
from tidal.pets.base import load_base_layers
from tidal.pets.tasks.folder import add_task
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import BaseLayers, FloatArray, Head, TaskTerms
from tidal.tasks.folder import tasks_folder
from tidal_builders.pets.build import build_pets
from tidal_builders.pets.report import PetsReport
from tidal_builders.pets.typical import typical_task
from tidal_builders.specs import parse_spec

MAX_LENGTH, MAX_BATCH = 64, 16


MADE = Provenance(format="trained", source="a test")


@dataclass
class Base:
    """The source model's folder, a repository with a model built from it, and its tasks' expected answers."""

    source: Path
    repository: Path
    report: PetsReport | None = None
    name: str = "base"
    _truths: dict[tuple[str, int], Truth] = field(default_factory=dict)

    @cached_property
    def layers(self) -> BaseLayers:
        return load_base_layers(self.repository / self.name / "1")

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
        """Copy the built base to another repository, with a changed config; returns its folder of tasks."""
        shutil.copytree(self.repository / "base", repository / name)
        file = repository / name / "config.pbtxt"
        text = file.read_text().replace('name: "base"\n', "") if config is None else config
        file.write_text(text + extra_config)
        return tasks_folder(repository / name)

    def terms(self, kind: str, seed: int) -> TaskTerms:
        """Terms of a typical task of a kind, with 2 to 5 classes."""
        terms = typical_task(kind, self.layers, seed)
        draw = np.random.default_rng(seed)
        labels = tuple(f"{kind} {seed} {number}" for number in range(2 + seed % 4))
        weight = draw.normal(size=(len(labels), self.layers.width)).astype(np.float32)
        return replace(terms, head=Head(weight, draw.normal(size=len(labels)).astype(np.float32), labels))

    def add(self, tasks: Path, kind: str, seed: int, name: str | None = None, *, replace: bool = False) -> str:
        """Add that task to a folder; returns its name, by default `<kind>_<seed>`."""
        name = name or f"{kind}_{seed}"
        add_task(tasks, name, kind, self.terms(kind, seed), self.layers, MADE, replace=replace)
        return name

    def logits(self, task: str, text: str, pair: str | None = None) -> FloatArray:
        """Logits of the task `<kind>_<seed>` for one text, merged into a copy of the unmodified model."""
        kind, _, seed = task.rpartition("_")
        key = kind, int(seed)
        if key not in self._truths:
            self._truths[key] = Truth(self.model, self.terms(*key))
        encoded = self.tokenizer(text, pair)
        return self._truths[key].logits(encoded["input_ids"], encoded["token_type_ids"])


def build(source: Path, repository: Path, name: str, **fields: Any) -> PetsReport:
    """Build a model from the tiny source."""
    spec = {"kind": "pets", "name": name, "model": str(source), "max_batch": MAX_BATCH, "max_tokens": 1024}
    parsed: Any = parse_spec({**spec, "profile_seconds": 0.1, **fields}, "test")
    with quick_profiles():
        return build_pets(parsed, repository, spec_file=repository / "base.yaml")


def tiny_base(temporary: pytest.TempPathFactory) -> Base:
    """The tiny base, built once for all tests of a run; its folders must not be changed."""

    def make(folder: Path) -> None:
        build(make_tiny_classifier(folder / "source", max_position=MAX_LENGTH), folder / "repository", "base")

    folder = built_once(temporary, "pets", make)
    return Base(folder / "source", folder / "repository")
