"""Number of tasks in 2 GiB of weights, compared with full models (PetS §6.2.1, Table 5)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.pets import full_models
from benchmarks.pets.prepare import PetsArtefacts
from benchmarks.report import progress
from tidal.pets.base import load_base_layers, write_base_layers
from tidal.pets.manifest import ENGINE_FOLDER
from tidal_builders.pets.base import export_encoder

BUDGET = 2 << 30


@dataclass(frozen=True, slots=True)
class FittingTasks:
    """Memory of a process filled with tasks or full models.

    Attributes:
        shared: Bytes shared by all tasks.
        each: Bytes of one more task, by kind.
        count: Number of tasks in memory at the end, the kinds in turns.
        weights: Bytes of all tasks with the shared ones.
        with_batch: The same after a batch of 32 queries of 128 tokens.
        survived: Whether that batch was answered.
        seconds: Duration of filling.
    """

    shared: float
    each: Mapping[str, float]
    count: int
    weights: float
    with_batch: float
    survived: bool
    seconds: float

    @property
    def mean(self) -> float:
        """Bytes of one more task, mean of the kinds."""
        return float(np.mean(list(self.each.values())))

    def capacity(self, budget: int) -> float:
        """Number of tasks within a budget: counted if it was filled, else computed from the bytes of one task."""
        if self.weights >= budget:
            return float(self.count)
        return (budget - self.shared) / self.mean


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of one base for tasks, and for full models."""

    base: str
    tasks: FittingTasks
    full: FittingTasks

    @property
    def counted(self) -> bool:
        """Whether 2 GiB were filled with both; else the numbers are extrapolated from measured bytes."""
        return min(self.tasks.weights, self.full.weights) >= BUDGET

    @property
    def ratio(self) -> float:
        """Number of tasks per full model within the budget."""
        return self.tasks.capacity(BUDGET) / self.full.capacity(BUDGET)


def measure_minilm(artefacts: PetsArtefacts, *, fill: bool) -> Capacity:
    """Measure with MiniLM; without `fill`, the capacity is extrapolated from a few tasks."""
    version = artefacts.version
    places = {"version": version, "engine": version / ENGINE_FOLDER}
    return _measure("MiniLM", places, artefacts.full, BUDGET if fill else 0, 4)


def measure_bert_base(artefacts: PetsArtefacts) -> Capacity:
    """Measure a few tasks of each kind with a base of BERT-base's size and random weights."""
    folder = artefacts.folder / "bert-base"
    if not (folder / "full" / full_models.DONE).exists():
        progress("capacity: creating a base of BERT-base's size with random weights")
        _make_bert_base(folder)
    places = {"version": folder, "engine": folder / ENGINE_FOLDER}
    return _measure("BERT-base (random weights)", places, folder / "full", 0, 1)


def _make_bert_base(folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig()).eval()
    layers, info = export_encoder(model, folder / ENGINE_FOLDER)
    write_base_layers(folder, layers, info)
    model.save_pretrained(folder / "model")
    full_models.write_templates(folder / "model", load_base_layers(folder), folder / "full")


def _measure(name: str, places: Mapping[str, Path], full: Path, budget: int, count: int) -> Capacity:
    found = []
    for extra in ([], ["--full", str(full)]):
        progress(f"capacity: {name}, {'full models' if extra else 'tasks'} in a separate process")
        options = [part for option, place in places.items() for part in (f"--{option}", str(place))]
        command = [sys.executable, "-m", "benchmarks.pets.capacity_child", *options, *extra]
        command += ["--budget", str(budget), "--count", str(count)]
        # One arena: memory that malloc retains per thread would count as the tasks'.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
        found.append(FittingTasks(**json.loads(output.splitlines()[-1])))
    return Capacity(name, *found)
