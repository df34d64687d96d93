"""Artefacts of the benchmark, created once: fine-tuned levels of every task, and a cascade built by `tidal build`."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import demo.train
from benchmarks.kept import cache_folder
from benchmarks.report import progress
from benchmarks.tabi import tasks, train
from benchmarks.tabi.artefacts import LONGEST, TaskArtefacts, build, write_labelled
from benchmarks.tabi.sized_levels import prepare_sized
from benchmarks.tabi.tasks import TASKS, DataTask, TaskQueries, TaskSplit


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
    write_labelled(artefacts.split.held_out, artefacts.folder / "held_out.jsonl")
    build(artefacts, train.LAYERS, {"precision": "fp32"})


def _digest(data: Path, task: DataTask) -> str:
    """Return the hash of what levels depend on: the recipe, the training code, and the task's data."""
    code = "".join(Path(str(module.__file__)).read_text() for module in (tasks, train, demo.train))
    return hashlib.sha256(f"{task}{code}{tasks.digest(data, task)}".encode()).hexdigest()[:12]


def main(data: Annotated[Path, typer.Option(help="Folder with the tasks' train.tsv.gz and dev.tsv.gz.")]) -> None:
    """Train and build the artefacts of `python -m benchmarks.tabi`; up to an hour, once."""
    for artefacts in prepare(data):
        print(f"artefacts {artefacts.task.name} {artefacts.digest}")
        print(f"artefacts {artefacts.task.name}, sized {prepare_sized(artefacts).digest}")


if __name__ == "__main__":
    typer.run(main)
