"""Served answers: every row compared with its task's full model, and real tasks' accuracy compared with offline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.closed_loop import metric, series
from benchmarks.pets.prepare import PetsArtefacts
from benchmarks.pets.reference import Row, agreement, expected
from benchmarks.pets.tasks import load
from benchmarks.pets.waves import as_input
from benchmarks.report import progress
from tidal.pets.terms import FloatArray
from tidal.server.child import RunningServer
from tidal_client import AsyncClient

_AT_ONCE = 96
# Metrics are published every 200 ms.
_PAUSE_S = 0.6
_DISTINCT = "tidal_pets_batch_distinct_tasks"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of served rows with full models.

    Attributes:
        rows: Number of rows.
        same: Share of rows with the same label.
        error: Largest absolute difference of a logit.
        mixed: Number of batches with more than 8 distinct tasks.
        mean_tasks: Mean number of distinct tasks per batch.
    """

    rows: int
    same: float
    error: float
    mixed: float
    mean_tasks: float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy on a real task.

    Attributes:
        task: Name of the task.
        kind: Kind of fine-tuning.
        rows: Number of labelled queries.
        served: Accuracy through the server.
        offline: Accuracy of the merged model offline.
        same: Share of rows with the same label in both.
        stored_bytes: Bytes of the stored task.
    """

    task: str
    kind: str
    rows: int
    served: float
    offline: float
    same: float
    stored_bytes: int


def measure_agreement(
    server: RunningServer,
    model: str,
    artefacts: PetsArtefacts,
    folders: Sequence[Path],
    texts: Sequence[str],
    rows: int,
) -> Agreement:
    """Send rows of random tasks concurrently, and run the full model of each task row by row.

    Args:
        server: Running server.
        model: Name of the model.
        artefacts: Artefacts of the benchmark.
        folders: Folders of the tasks.
        texts: Texts to draw from.
        rows: Number of rows.
    """
    draw = np.random.default_rng(5)
    asked: list[Row] = [
        (folders[draw.integers(len(folders))], (texts[draw.integers(len(texts))],)) for _ in range(rows)
    ]
    before = _mixing(server, model)
    found = ask(server, model, asked)
    time.sleep(_PAUSE_S)
    after = _mixing(server, model)
    mixed, batches, tasks = (b - a for a, b in zip(before, after, strict=True))
    progress(f"agreement: running full models on {rows} rows")
    same, error = agreement(found, expected(asked, artefacts.base))
    return Agreement(rows, same, error, mixed, tasks / max(1.0, batches))


def measure_accuracy(server: RunningServer, model: str, artefacts: PetsArtefacts, most: int) -> list[Accuracy]:
    """Send the labelled queries of all real tasks, mixed, with at most `most` per task."""
    assert artefacts.data is not None
    rows: list[Row] = []
    truth: list[str] = []
    splits = {}
    for task in artefacts.real_tasks:
        split = load(artefacts.data, task)
        dev = split.dev.at(list(range(min(most, len(split.dev)))))
        splits[task.task] = split.labels
        rows += [(artefacts.real / task.task, texts) for texts in dev.texts]
        truth += dev.truth
    order = np.random.default_rng(3).permutation(len(rows)).tolist()
    rows, truth = [rows[place] for place in order], [truth[place] for place in order]
    progress(f"accuracy: {len(rows)} labelled queries of {len(splits)} tasks, mixed")
    found = ask(server, model, rows)
    progress("accuracy: the same offline")
    wanted = expected(rows, artefacts.base, batch=32)
    outcome = []
    for task in artefacts.real_tasks:
        mine = [number for number, (folder, _) in enumerate(rows) if folder.name == task.task]
        labels = splits[task.task]
        right = [[labels[logits[n].argmax()] == truth[n] for n in mine] for logits in (found, wanted)]
        same = [int(found[n].argmax()) == int(wanted[n].argmax()) for n in mine]
        stored = sum(file.stat().st_size for file in (artefacts.real / task.task).iterdir())
        served, offline = (float(np.mean(each)) for each in right)
        outcome.append(Accuracy(task.name, task.kind, len(mine), served, offline, float(np.mean(same)), stored))
    return outcome


def ask(server: RunningServer, model: str, rows: Sequence[Row]) -> list[FloatArray]:
    """Send rows concurrently; return the logits of each, [classes]."""
    return asyncio.run(_ask(server.grpc, model, rows))


async def _ask(url: str, model: str, rows: Sequence[Row]) -> list[FloatArray]:
    limit = asyncio.Semaphore(_AT_ONCE)
    async with AsyncClient(url, timeout_s=60) as client:

        async def one(folder: Path, texts: tuple[str, ...]) -> Any:
            inputs = {name: as_input([text]) for name, text in zip(("text_input", "text_pair"), texts, strict=False)}
            async with limit:
                found = await client.infer(model, inputs, outputs=["logits"], task=folder.name)
            return np.asarray(found["logits"]).ravel()

        return list(await asyncio.gather(*(one(*row) for row in rows)))


def _mixing(server: RunningServer, model: str) -> tuple[float, float, float]:
    """Return the number of batches with more than 8 tasks, of all batches, and the sum of their tasks, so far."""
    tasks, batches = metric(server, _DISTINCT, model) or (0.0, 0.0)
    few = series(server, f"{_DISTINCT}_bucket", model, le="8") or 0.0
    return batches - few, batches, tasks
