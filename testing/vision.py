"""A tiny published vision transformer with random tasks, and their expected answers."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from testing.tiny_vision import build, manifest_of, random_parameters, write_source
from testing.vits import tiny_vit
from tidal.manifest import MANIFEST_FILE
from tidal.otas.images import FloatArray
from tidal.otas.manifest import OtasManifest
from tidal.otas.tasks import OtasProvenance, TaskParameters, add_task
from tidal.tasks.folder import tasks_folder
from tidal_builders.otas.transformer import TransformerModel, load_transformer
from tidal_builders.otas.vit import Vit

GAMMAS, MAX_BATCH = (-2, 0, 2), 8
# Milliseconds of batches of 1 and 8 for each γ: far more than the tiny model takes, so that the profile decides on γ.
_MS = ((10.0, 20.0), (2000.0, 3000.0), (5000.0, 8000.0))


@dataclass
class Vision:
    """A repository with the model `vision`, and the weights that it was built from."""

    repository: Path
    vit: Vit
    _tasks: dict[str, TaskParameters] = field(default_factory=dict)

    @cached_property
    def manifest(self) -> OtasManifest:
        return manifest_of(self.repository)

    @cached_property
    def model(self) -> TransformerModel:
        return load_transformer(self.vit)

    def copy(self, repository: Path, name: str, *, more: str = "", config: str | None = None) -> Path:
        """Copy the model to another repository, with a changed config; returns its folder of tasks."""
        shutil.copytree(self.repository / "vision", repository / name)
        file = repository / name / "config.pbtxt"
        text = file.read_text().replace('name: "vision"\n', "") if config is None else config
        file.write_text(text + more)
        return tasks_folder(repository / name)

    def task(self, name: str, classes: int) -> TaskParameters:
        """Return random parameters of a task with a number of classes."""
        if name not in self._tasks:
            labels = [f"{name} {number}" for number in range(classes)]
            self._tasks[name] = random_parameters(self.manifest, labels, seed=classes)
        return self._tasks[name]

    def add(self, tasks: Path, name: str, classes: int) -> None:
        """Add that task to a folder, with an accuracy that increases with γ."""
        accuracy = {gamma: 0.8 + gamma / 20 for gamma in GAMMAS}
        add_task(tasks, name, self.task(name, classes), accuracy, self.manifest, OtasProvenance(source="a test"))

    def logits(self, name: str, gamma: int, pixels: FloatArray) -> FloatArray:
        """Compute the logits of a task for one image [channels, height, width] at γ by torch."""
        of = self._tasks[name]
        prompts = torch.from_numpy(of.prompts[gamma][None]) if gamma > 0 else None
        features = self.model(gamma, torch.from_numpy(pixels[None]), prompts).numpy()
        return np.asarray(of.logits(gamma, features)[0])


def publish_tiny(folder: Path) -> Vision:
    """Build a tiny model and replace its profile by one with much larger latencies."""
    vit = tiny_vit(width=16, patch=(8, 8), size=32)
    build(folder, write_source(folder / "source", vit), gammas=list(GAMMAS), max_batch=MAX_BATCH)
    file = folder / "vision/1" / MANIFEST_FILE
    content = json.loads(file.read_text())
    content["profile"] |= {"batches": (1, MAX_BATCH), "median_ms": _MS, "p95_ms": _MS}
    file.write_text(json.dumps(content))
    return Vision(folder, vit)
