"""Artefacts of the benchmark, created once: fine-tuned levels of every task, and a cascade built by `tidal build`."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
import yaml

import demo.train
from benchmarks.kept import cache_folder
from benchmarks.report import progress
from benchmarks.tabi import tasks, train
from benchmarks.tabi.tasks import TASKS, DataTask, TaskQueries, TaskSplit
from tidal.repository.entries import ModelEntry
from tidal.tabi.manifest import TabiManifest, load_tabi_manifest

# Maximum length that levels are trained for, in tokens; see `train`.
LONGEST = 320
# Lengths of runtimes, up to the task's longest query.
_LENGTHS = (16, 32, 64, 128)
# The builder needs a part for its own report; the benchmark reports on the dev split.
_PARTS = {"calibration": 0.3, "selection": 0.6, "report": 0.1}


@dataclass(frozen=True, slots=True)
class TaskArtefacts:
    """A task's data, models and repository; `digest` is the hash of the recipe, the data and the code."""

    task: DataTask
    split: TaskSplit
    folder: Path
    digest: str

    @property
    def repository(self) -> Path:
        """Model repository with the cascade and its levels."""
        return self.folder / "repository"

    def version(self, model: str) -> Path:
        """Return a model's newest version folder."""
        latest = ModelEntry(self.repository / model).latest()
        assert latest is not None
        return latest

    @property
    def manifest(self) -> TabiManifest:
        """Manifest of the cascade."""
        return load_tabi_manifest(self.version(self.task.name))

    def level_version(self, level: int) -> Path:
        """Return the version folder of a level of the cascade.

        Args:
            level: Index of the level.
        """
        found = self.manifest.levels[level]
        return self.repository / found.model / str(found.version)


def prepare(data: Path) -> list[TaskArtefacts]:
    """Train and build the missing artefacts; an interrupted run resumes with the model it was training.

    Args:
        data: Folder with the tasks' data.
    """
    found = []
    for number, task in enumerate(TASKS):
        digest = _digest(data, task)
        folder = cache_folder() / f"tabi-{task.name}-{digest}"
        folder.mkdir(parents=True, exist_ok=True)
        split = _readable(tasks.load(data, task), task)
        artefacts = TaskArtefacts(task, split, folder, digest)
        progress(f"task {number + 1} of {len(TASKS)}: {task.name} ({folder.name})")
        models = folder / "models"
        teacher, *others = reversed(train.LAYERS)
        train.fine_tune(task, teacher, split, models / teacher, None)
        for level in others:
            train.fine_tune(task, level, split, models / level, models / teacher)
        _build(artefacts)
        found.append(artefacts)
    return found


def write_labelled(queries: TaskQueries, file: Path) -> None:
    """Write queries for `tidal build`: one JSON object per line.

    Args:
        queries: Labelled queries.
        file: File to write.
    """
    with file.open("w", encoding="utf-8") as lines:
        for texts, label in zip(queries.texts, queries.truth, strict=True):
            row = dict(zip(("text", "text_pair"), texts, strict=False))
            lines.write(json.dumps({**row, "label": label}) + "\n")


def _lengths(queries: TaskQueries) -> list[int]:
    """Return the number of tokens of each query."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo.train.minilm_folder())
    return [len(ids) for ids in tokenizer(*(list(column) for column in zip(*queries.texts, strict=True)))["input_ids"]]


def _readable(split: TaskSplit, task: DataTask) -> TaskSplit:
    """Return a split without the dev queries that exceed the length that levels are trained for."""
    fits = [row for row, tokens in enumerate(_lengths(split.dev)) if tokens <= LONGEST]
    if len(fits) == len(split.dev):
        return split
    progress(f"{task.name}: {len(split.dev) - len(fits)} queries of dev have over {LONGEST} tokens: left out")
    return replace(split, dev=split.dev.at(fits))


def _build(artefacts: TaskArtefacts) -> None:
    task, folder = artefacts.task, artefacts.folder
    write_labelled(artefacts.split.held_out, folder / "held_out.jsonl")
    longest = -(-train.longest_query(artefacts.split) // 8) * 8
    spec = {
        "kind": "tabi",
        "name": task.name,
        "levels": [{"name": level, "model": str(folder / "models" / level)} for level in train.LAYERS],
        "data": str(folder / "held_out.jsonl"),
        "parts": _PARTS,
        # Every candidate meets it: the benchmark selects by its own targets among the kept candidates.
        "target": {"latency_ms": 60_000},
        "runtimes": {
            "precision": "fp32",
            "form": "dynamic",
            "max_batch": 4,
            "lengths": [*(length for length in _LENGTHS if length < longest), longest],
        },
    }
    file = folder / f"{task.name}.yaml"
    content = yaml.safe_dump(spec, sort_keys=False)
    if not file.exists() or file.read_text() != content:
        file.write_text(content)
    progress(f"building {task.name} (nothing to do when it is up to date)")
    command = [sys.executable, "-m", "tidal_client.main", "build", str(file), "--repository", str(artefacts.repository)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def _digest(data: Path, task: DataTask) -> str:
    """Return the hash of what levels depend on: the recipe, the training code, and the task's data."""
    code = "".join(Path(str(module.__file__)).read_text() for module in (tasks, train, demo.train))
    return hashlib.sha256(f"{task}{code}{tasks.digest(data, task)}".encode()).hexdigest()[:12]


def main(data: Annotated[Path, typer.Option(help="Folder with the tasks' train.tsv.gz and dev.tsv.gz.")]) -> None:
    """Train and build the artefacts of `python -m benchmarks.tabi`; at most half an hour, once."""
    for artefacts in prepare(data):
        print(f"artefacts {artefacts.task.name} {artefacts.digest}")


if __name__ == "__main__":
    typer.run(main)
