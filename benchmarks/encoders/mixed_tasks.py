"""Agreement of tasks of several kinds that share one encoder and its batches (PetS) with models of their own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoders.run import EncoderRun
from benchmarks.report import Claim, progress
from demo.texts import make_examples
from demo.train import minilm_folder
from testing.pets import MADE, Base, build
from testing.task_heads import answer_or_none, expected, random_head
from testing.truth import Truth, random_terms
from tidal.pets.tasks.folder import add_task
from tidal.pets.terms import TaskTerms
from tidal.tasks.folder import tasks_folder
from tidal_client import AsyncClient

#: Name of the shared model.
MODEL = "minilm_tasks"
# Kind of task by its name: the way of fine-tuning, the type of its terms and the seed of its weights. All are random.
_TASKS = {
    "classification": ("adapter", "bottleneck", 2),
    "multi-label": ("lora", "low_rank", 1),
    "token-classification": ("bitfit", "bias", 3),
    "regression": ("diff_pruning", "sparse", 4),
    "rerank": ("lora", "low_rank", 5),
    "embedding": ("lora", "low_rank", 6),
    "question-answering": ("lora", "low_rank", 8),
}
_PAIRED = ("rerank", "question-answering")
_TOLERANCE = 1e-3
_IN_FLIGHT = 64


def is_built(repository: Path) -> bool:
    """Whether `build_tasks` has completed."""
    return (tasks_folder(repository / MODEL) / list(_TASKS)[-1]).is_dir()


def build_tasks(repository: Path) -> None:
    """Build the shared model on all-MiniLM-L6-v2, and add a task of every kind."""
    build(minilm_folder(), repository, MODEL)
    base = _base(repository)
    for task, (kind, _, _) in _TASKS.items():
        add_task(tasks_folder(repository / MODEL), task, kind, _terms(base, task), base.layers, MADE, replace=True)


def measure(url: str, repository: Path, count: int) -> dict[str, float]:
    """Send queries of all tasks at once, and compare the answers with the tasks' own models of transformers.

    Args:
        url: Address of a server with the shared model.
        repository: Its repository.
        count: Number of queries of each task.

    Returns:
        Share of equal answers by kind of task.
    """
    base = _base(repository)
    texts = [text for text, _ in make_examples(2 * count, seed=21)]
    queries = [
        (task, texts[at], texts[count + at] if task in _PAIRED else None) for at in range(count) for task in _TASKS
    ]
    random.Random(0).shuffle(queries)
    progress(f"comparing {len(queries)} queries of {len(_TASKS)} kinds of tasks with models of their own")
    answers = asyncio.run(_ask(url, queries))
    truths = {task: Truth(base.model, _terms(base, task)) for task in _TASKS}
    equal: dict[str, list[bool]] = {task: [] for task in _TASKS}
    for (task, text, pair), answer in zip(queries, answers, strict=True):
        equal[task].append(_same(truths[task], base.tokenizer(text, pair), pair, answer))
    return {task: sum(found) / len(found) for task, found in equal.items()}


def make_claims(run: EncoderRun) -> list[Claim]:
    """Return `mixed_tasks_agreement` if the run has its result, the smallest agreement over all tasks.

    Args:
        run: Run whose fact `mixed_tasks` holds the agreement of each task kind.
    """
    found = run.facts.get("mixed_tasks")
    if not found:
        return []
    kind, others = min(found, key=lambda each: found[each]), sorted(found.values())[1:]
    note = f"{_IN_FLIGHT} in flight; least: {kind}; {len(others)} other kinds from {min(others):.4f}"
    return [Claim("mixed_tasks_agreement", ">= 0.999", found[kind], note=note)]


def _base(repository: Path) -> Base:
    """The shared model in the form of `testing.pets`, which reads the layers of the model `base`."""
    return Base(minilm_folder(), repository, name=MODEL)


def _terms(base: Base, task: str) -> TaskTerms:
    kind, terms, seed = _TASKS[task]
    found = replace(random_terms(terms, base.layers, seed), head=random_head(task, base.layers.width, seed))
    if kind == "adapter":  # bottlenecks only where adapters may be
        linear = {path: own for path, own in found.linear.items() if path.endswith("output.dense")}
        found = replace(found, linear=linear)
    return found


async def _ask(url: str, queries: Sequence[tuple[str, str, str | None]]) -> list[dict[str, Any]]:
    free = asyncio.Semaphore(_IN_FLIGHT)

    async with AsyncClient(url) as client:

        async def ask(task: str, text: str, pair: str | None) -> dict[str, Any]:
            inputs = {"text_input": np.array([[text.encode()]], object)}
            if pair is not None:
                inputs["text_pair"] = np.array([[pair.encode()]], object)
            async with free:
                return dict(await client.infer(MODEL, inputs, task=task))

        return await asyncio.gather(*(ask(*query) for query in queries))


def _same(truth: Truth, encoded: Any, pair: str | None, answer: dict[str, Any]) -> bool:
    """Whether an answer is that of the task's own model."""
    values = expected(truth, truth.head, encoded["input_ids"], encoded["token_type_ids"])
    if truth.head.task == "question-answering":
        place = answer_or_none(values, encoded, pair or "", impossible=False)
        return (answer["start"][0, 0], answer["end"][0, 0]) == place
    served = answer["embedding" if truth.head.task == "embedding" else "logits"][0]
    close = np.allclose(served, values, atol=_TOLERANCE * max(1.0, float(np.abs(values).max())))
    return close and (truth.head.task == "embedding" or bool((served.argmax(-1) == values.argmax(-1)).all()))
