"""`peft`'s mixed batches of LoRA tasks, compared in one process with the same tasks in Tidal's engine."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.pets.tasks import random_tasks
from benchmarks.pets.timing import medians
from demo.train import minilm_folder
from tidal.pets.openvino_engine.engine import OpenVinoPetsEngine
from tidal.pets.terms import BaseLayers, LowRankDelta, TaskTerms
from tidal_builders.pets.typical import typical_task

TASKS = 24


@dataclass(frozen=True, slots=True)
class MixedBatch:
    """Times in ms of a batch with one query per LoRA task, and the largest absolute difference of the vectors."""

    tasks: int
    length: int
    peft: float
    tidal: float
    error: float


def why_not() -> str | None:
    """Return the reason why this cannot be measured; None if it can."""
    return None if find_spec("peft") else "peft is not installed"


def measure(
    engine: OpenVinoPetsEngine, base: BaseLayers, lengths: tuple[int, ...], threads: int, rounds: int
) -> list[MixedBatch]:
    """Time both on the same rows in fp32, alternately.

    Args:
        engine: Engine of the base.
        base: Layers of the base.
        lengths: Numbers of tokens per query.
        threads: Number of torch threads.
        rounds: Number of rounds.
    """
    import torch

    torch.set_num_threads(threads)
    terms = {task.task: typical_task("lora", base, seed=task.number) for task in random_tasks(TASKS, ("lora",))}
    model = _peft_model(terms)
    loaded = [engine.add(each) for each in terms.values()]
    names = [_name(task) for task in terms]
    draw = np.random.default_rng(0)
    found = []
    for length in lengths:
        ids = draw.integers(1000, 29000, (TASKS, length))
        counts = np.full(TASKS, length, np.int32)
        tensor = torch.from_numpy(ids)
        inputs = {"input_ids": tensor, "attention_mask": torch.ones_like(tensor)}

        def theirs(inputs: dict[str, Any] = inputs) -> Any:
            with torch.inference_mode():
                return model(**inputs, adapter_names=names).pooler_output.numpy()

        def ours(ids: Any = ids, counts: Any = counts) -> Any:
            return engine.pooled(loaded, ids, counts)

        error = float(np.abs(theirs() - ours()).max())
        peft, tidal = medians([theirs, ours], rounds)
        found.append(MixedBatch(TASKS, length, peft, tidal, error))
    for task in loaded:
        engine.remove(task)
    return found


def _peft_model(terms: dict[str, TaskTerms]) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    rank = 8
    config = LoraConfig(r=rank, lora_alpha=2, target_modules=["query", "value"], lora_dropout=0.0)
    first, *others = map(_name, terms)
    model = get_peft_model(AutoModel.from_pretrained(minilm_folder()), config, adapter_name=first)
    for name in others:
        model.add_adapter(name, config)
    inner = model.base_model.model
    assert isinstance(inner, torch.nn.Module)
    with torch.no_grad():
        for task, own in terms.items():
            for path, linear in own.linear.items():
                assert isinstance(linear.delta, LowRankDelta)
                assert linear.delta.scale == config.lora_alpha / rank
                layer: Any = inner.get_submodule(path)
                layer.lora_A[_name(task)].weight.copy_(torch.from_numpy(linear.delta.down))
                layer.lora_B[_name(task)].weight.copy_(torch.from_numpy(linear.delta.up))
    return model.eval()


def _name(task: str) -> str:
    """Return the adapter name of a task, which must be a module name."""
    return task.replace("-", "_")
