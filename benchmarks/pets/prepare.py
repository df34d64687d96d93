"""Prepares the artefacts once: the base by `tidal build`, real and random tasks, and the graph of a full model."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Annotated

import typer

import demo.train
import tidal_builders.pets.training
from benchmarks.kept import cache_folder
from benchmarks.pets import full_models, tasks
from benchmarks.pets.tasks import REAL_TASKS, RealTask
from benchmarks.report import progress
from demo.train import minilm_folder
from tidal.pets.base import load_base_layers
from tidal.pets.manifest import PetsManifest, load_pets_manifest
from tidal.pets.tasks.folder import add_task
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import BaseLayers
from tidal.repository.entries import ModelEntry
from tidal.tasks.folder import scan, tasks_folder

MODEL = "minilm"
# Longer texts are truncated, by the server and offline.
LONGEST = 128


class PetsArtefacts:
    """Prepared artefacts.

    Attributes:
        folder: Folder of all artefacts.
        data: Folder of the real tasks' data; None: no real tasks.
        digest: Digest of recipe, code and data.
    """

    def __init__(self, folder: Path, data: Path | None) -> None:
        self.folder = folder
        self.data = data
        self.digest = folder.name.removeprefix("pets-")

    @property
    def repository(self) -> Path:
        """Model repository with the base."""
        return self.folder / "repository"

    @property
    def random(self) -> Path:
        """Folder of the random tasks."""
        return self.folder / "random"

    @property
    def full(self) -> Path:
        """Folder with the graphs of full models."""
        return self.folder / "full"

    @property
    def version(self) -> Path:
        """Latest version folder of the base."""
        latest = ModelEntry(self.repository / MODEL).latest()
        assert latest is not None
        return latest

    @property
    def real(self) -> Path:
        """Folder of the real tasks."""
        return tasks_folder(self.repository / MODEL)

    @cached_property
    def manifest(self) -> PetsManifest:
        """Manifest of the base."""
        return load_pets_manifest(self.version)

    @cached_property
    def base(self) -> BaseLayers:
        """Layers of the base."""
        return load_base_layers(self.version)

    @cached_property
    def real_tasks(self) -> list[RealTask]:
        """Trained real tasks; empty without data."""
        return [] if self.data is None else list(REAL_TASKS)


def prepare(data: Path | None) -> PetsArtefacts:
    """Create missing artefacts; an interrupted run resumes with the current task.

    Args:
        data: Folder of the real tasks' data; None leaves them out.
    """
    artefacts = PetsArtefacts(cache_folder() / f"pets-{_digest(data)}", data)
    artefacts.folder.mkdir(parents=True, exist_ok=True)
    _build(artefacts)
    if not (artefacts.full / full_models.DONE).exists():
        progress("converting full models: one graph without and one with adapters")
        full_models.write_templates(minilm_folder(), artefacts.base, artefacts.full)
    _make_random(artefacts)
    there = scan(artefacts.real)
    for number, task in enumerate(artefacts.real_tasks):
        if task.task not in there:
            progress(f"training {task.name} ({task.kind}), {number + 1} of {len(REAL_TASKS)}")
            _train(artefacts, task)
    return artefacts


def _build(artefacts: PetsArtefacts) -> None:
    spec = artefacts.folder / f"{MODEL}.yaml"
    spec.write_text(f"kind: pets\nname: {MODEL}\nmodel: {minilm_folder()}\nmax_length: {LONGEST}\ntruncate: true\n")
    progress("building the base (skipped if it is up to date)")
    command = [sys.executable, "-m", "tidal_client.main", "build", str(spec)]
    subprocess.run([*command, "--repository", str(artefacts.repository)], check=True, stdout=sys.stderr)


def _make_random(artefacts: PetsArtefacts) -> None:
    from tidal_builders.pets.typical import typical_task

    there = scan(artefacts.random)
    missing = [task for task in tasks.random_tasks(tasks.RANDOM_TASKS) if task.task not in there]
    if missing:
        progress(f"creating {len(missing)} random tasks")
    made = Provenance(format="random", source="published sizes, random values: for speed only")
    for task in missing:
        terms = typical_task(task.kind, artefacts.base, seed=task.number)
        add_task(artefacts.random, task.task, task.kind, terms, artefacts.base, made)


def _train(artefacts: PetsArtefacts, task: RealTask) -> None:
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    from tidal_builders.pets.training.settings import TrainingSettings
    from tidal_builders.pets.training.train import train_task

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    assert artefacts.data is not None
    split = tasks.load(artefacts.data, task)
    source = minilm_folder()
    found = train_task(
        AutoModel.from_pretrained(source),
        AutoTokenizer.from_pretrained(source),
        artefacts.base,
        task.kind,
        split.train.texts,
        split.train.truth,
        split.labels,
        TrainingSettings(epochs=task.epochs, longest=LONGEST),
    )
    losses = ", ".join(f"{loss:.3f}" for loss in found.losses)
    progress(f"trained {task.task} in {found.seconds:.0f} s; mean loss by pass: {losses}")
    made = Provenance(
        format="trained",
        source=str(source),
        notes=(f"{len(split.train)} texts of {task.name}, {task.epochs} passes, {found.seconds:.0f} s",),
    )
    add_task(artefacts.real, task.task, task.kind, found.terms, artefacts.base, made)


def _digest(data: Path | None) -> str:
    """Return the digest of the recipe, of the code that trains and converts, and of the data."""
    files = sorted(Path(next(iter(tidal_builders.pets.training.__path__))).glob("*.py"))
    files += [Path(str(module.__file__)) for module in (tasks, full_models, demo.train)]
    text = "".join(file.read_text() for file in files) + ("" if data is None else tasks.digest(data))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def main(data: Annotated[Path | None, typer.Option(help="Folder with the tasks' train.tsv.gz.")] = None) -> None:
    """Build and train the artefacts of `python -m benchmarks.pets`; at most half an hour, once."""
    print(f"artefacts {prepare(data).digest}")


if __name__ == "__main__":
    typer.run(main)
