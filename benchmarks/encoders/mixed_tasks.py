"""Agreement of tasks of several kinds that share one encoder and its batches (PetS) with models of their own."""

from __future__ import annotations

import asyncio
import json
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
from testing.task_heads import MAX_MASKS, answer_chances, expected, random_head
from testing.truth import Truth, random_terms
from tidal.pets.tasks.folder import add_task
from tidal.pets.terms import FloatArray, LowRankDelta, TaskTerms
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
    "fill-mask": ("lora", "low_rank", 10),
    "sparse-embedding": ("bitfit", "bias", 9),
}
_PAIRED = ("rerank", "question-answering")
_TOLERANCE = 1e-3
# Random low-rank differences are scaled down, so that they do not make the vectors of all tokens equal.
_SCALE = 0.1
# Share by which the probability of an answer may be below that of the likeliest one, which rounding then decides.
_TIE = 1e-4
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
    mask = base.tokenizer.mask_token
    queries = [
        (
            task,
            f"{mask} {texts[at]}" if task == "fill-mask" else texts[at],
            texts[count + at] if task in _PAIRED else None,
        )
        for at in range(count)
        for task in _TASKS
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
    words = {"words": len(base.tokenizer), "mask_id": base.tokenizer.mask_token_id}
    found = replace(random_terms(terms, base.layers, seed), head=random_head(task, base.layers.width, seed, **words))
    if terms == "low_rank":
        scaled = {path: replace(own, delta=_scaled(own.delta)) for path, own in found.linear.items()}
        found = replace(found, linear=scaled)
    if kind == "adapter":  # bottlenecks only where adapters may be
        linear = {path: own for path, own in found.linear.items() if path.endswith("output.dense")}
        found = replace(found, linear=linear)
    return found


def _scaled(delta: Any) -> LowRankDelta:
    return LowRankDelta(delta.down, delta.up, _SCALE * delta.scale)


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
    values, task = expected(truth, truth.head, encoded["input_ids"], encoded["token_type_ids"]), truth.head.task
    tolerance = _TOLERANCE * max(1.0, float(np.abs(values).max()))
    if task == "question-answering":
        chances, _ = answer_chances(values, encoded, pair or "")
        found = chances.get((answer["start"][0, 0], answer["end"][0, 0]), 0.0)
        return found >= (1 - _TIE) * max(chances.values())
    if task == "fill-mask":
        return _same_words(values.reshape(MAX_MASKS, -1)[0], json.loads(answer["predictions"][0, 0])[0], tolerance)
    if task == "sparse-embedding":
        served = np.zeros_like(values)
        served[answer["indices"][0]] = answer["weights"][0]
    else:
        served = answer["embedding" if task == "embedding" else "logits"][0]
    close = np.allclose(served, values, atol=tolerance)
    return close and ("embedding" in task or bool((served.argmax(-1) == values.argmax(-1)).all()))


def _same_words(values: FloatArray, predictions: list[dict[str, Any]], tolerance: float) -> bool:
    """Whether the predictions for a mask are its most likely words, with their probabilities."""
    powers = np.exp(values.astype(np.float64) - values.max())
    chances, found = powers / powers.sum(), [each["token_id"] for each in predictions]
    best = np.sort(values)[::-1][: len(found)]
    close = np.allclose([each["score"] for each in predictions], chances[found], rtol=4 * tolerance)
    return close and len(set(found)) == len(found) and np.allclose(values[found], best, atol=tolerance)
