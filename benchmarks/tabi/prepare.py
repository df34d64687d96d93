"""What the benchmark needs, made once: fine-tuned levels of every task, and a cascade of them by `tidal build`."""

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
from benchmarks.tabi.tasks import TASKS, Queries, Split, Task
from tidal.repository.entries import ModelEntry
from tidal.tabi.manifest import TabiManifest, load_tabi_manifest

# What levels are trained to read, in tokens; see `train`.
LONGEST = 320
# Lengths of runtimes, up to the task's longest query.
_LENGTHS = (16, 32, 64, 128)
# The builder keeps a part for its own report; here dev is reported on.
_PARTS = {"calibration": 0.3, "selection": 0.6, "report": 0.1}


@dataclass(frozen=True, slots=True)
class Artefacts:
    """A task's data, models and repository; `digest` names recipe, data and code that they come from."""

    task: Task
    split: Split
    folder: Path
    digest: str

    @property
    def repository(self) -> Path:
        """Where `tidal build` published the cascade and its levels."""
        return self.folder / "repository"

    def version(self, model: str) -> Path:
        """A model's newest version folder."""
        latest = ModelEntry(self.repository / model).latest()
        assert latest is not None
        return latest

    @property
    def manifest(self) -> TabiManifest:
        """The cascade's."""
        return load_tabi_manifest(self.version(self.task.name))

    def level_version(self, level: int) -> Path:
        """Version folder that a level of the cascade is served from."""
        found = self.manifest.levels[level]
        return self.repository / found.model / str(found.version)


def prepare(data: Path) -> list[Artefacts]:
    """Train and build what is missing; a run that was cut short goes on with the model that it was at."""
    found = []
    for number, task in enumerate(TASKS):
        digest = _digest(data, task)
        folder = cache_folder() / f"tabi-{task.name}-{digest}"
        folder.mkdir(parents=True, exist_ok=True)
        split = _readable(tasks.load(data, task), task)
        artefacts = Artefacts(task, split, folder, digest)
        progress(f"task {number + 1} of {len(TASKS)}: {task.name} ({folder.name})")
        models = folder / "models"
        teacher, *others = reversed(train.LAYERS)
        train.fine_tune(task, teacher, split, models / teacher, None)
        for level in others:
            train.fine_tune(task, level, split, models / level, models / teacher)
        _build(artefacts)
        found.append(artefacts)
    return found


def write_labelled(queries: Queries, file: Path) -> None:
    """Queries as `tidal build` reads them: a JSON object a line."""
    with file.open("w", encoding="utf-8") as lines:
        for texts, label in zip(queries.texts, queries.truth, strict=True):
            row = dict(zip(("text", "text_pair"), texts, strict=False))
            lines.write(json.dumps({**row, "label": label}) + "\n")


def _lengths(queries: Queries) -> list[int]:
    """Tokens of each query."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo.train.minilm_folder())
    return [len(ids) for ids in tokenizer(*(list(column) for column in zip(*queries.texts, strict=True)))["input_ids"]]


def _readable(split: Split, task: Task) -> Split:
    """A split without the queries of dev that are longer than what levels are trained to read."""
    fits = [row for row, tokens in enumerate(_lengths(split.dev)) if tokens <= LONGEST]
    if len(fits) == len(split.dev):
        return split
    progress(f"{task.name}: {len(split.dev) - len(fits)} queries of dev have over {LONGEST} tokens: left out")
    return replace(split, dev=split.dev.at(fits))


def _build(artefacts: Artefacts) -> None:
    task, folder = artefacts.task, artefacts.folder
    write_labelled(artefacts.split.held_out, folder / "held_out.jsonl")
    longest = -(-train.longest_query(artefacts.split) // 8) * 8
    spec = {
        "kind": "tabi",
        "name": task.name,
        "levels": [{"name": level, "model": str(folder / "models" / level)} for level in train.LAYERS],
        "data": str(folder / "held_out.jsonl"),
        "parts": _PARTS,
        # Any candidate meets it: the benchmark chooses by targets of its own, from the candidates that are kept.
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


def _digest(data: Path, task: Task) -> str:
    """Names what levels are made from: the recipe, the code that trains, and the task's data."""
    code = "".join(Path(str(module.__file__)).read_text() for module in (tasks, train, demo.train))
    return hashlib.sha256(f"{task}{code}{tasks.digest(data, task)}".encode()).hexdigest()[:12]


def main(data: Annotated[Path, typer.Option(help="Folder with the tasks' train.tsv.gz and dev.tsv.gz.")]) -> None:
    """Train and build what `python -m benchmarks.tabi` measures; at most half an hour, once."""
    for artefacts in prepare(data):
        print(f"artefacts {artefacts.task.name} {artefacts.digest}")


if __name__ == "__main__":
    typer.run(main)
