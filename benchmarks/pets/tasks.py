"""Tasks of the benchmark: real ones, each fine-tuned in one kind, and random ones to measure speed and memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.tabi import tasks as labelled
from benchmarks.tabi.tasks import TaskSplit
from tidal_builders.pets.typical import TYPICAL_KINDS

KINDS = TYPICAL_KINDS
# Kinds whose operators are dense products and additions; those of the others are sparse products.
DENSE_KINDS = ("adapter", "bitfit", "lora")
RANDOM_TASKS = 128


@dataclass(frozen=True, slots=True)
class RealTask:
    """A real task.

    Attributes:
        name: Name of its folder in the data.
        kind: Kind of parameter-efficient fine-tuning.
        epochs: Number of epochs.
        most: Maximum number of training texts.
    """

    name: str
    kind: str
    epochs: int
    most: int

    @property
    def task(self) -> str:
        """Name of the task on the server."""
        return f"{self.name}-{self.kind}"


# Kinds that train whole weight matrices take longer, so they get the tasks with short texts.
REAL_TASKS = (
    RealTask("trec", "maskbert", 4, 4000),
    RealTask("mpqa", "maskbert", 2, 5000),
    RealTask("snips", "diff_pruning", 2, 4000),
    RealTask("clinc150", "diff_pruning", 3, 9000),
    RealTask("sst2", "adapter", 2, 5000),
    RealTask("hwu64", "adapter", 4, 6000),
    RealTask("mr", "lora", 2, 5000),
    RealTask("qnli", "lora", 2, 2500),
    RealTask("subj", "bitfit", 2, 4000),
    RealTask("dbpedia14", "bitfit", 2, 1500),
)


@dataclass(frozen=True, slots=True)
class RandomTask:
    """A task with random values, of the size published for its kind."""

    number: int

    @property
    def kind(self) -> str:
        """Kind of the task; consecutive numbers have different kinds."""
        return KINDS[self.number % len(KINDS)]

    @property
    def task(self) -> str:
        """Name of the task on the server."""
        return f"random-{self.number:03d}-{self.kind}"


def random_tasks(count: int, kinds: tuple[str, ...] = KINDS) -> list[RandomTask]:
    """Return the first `count` random tasks of some kinds, in alternation.

    Raises:
        ValueError: There are fewer.
    """
    found = [task for task in map(RandomTask, range(RANDOM_TASKS)) if task.kind in kinds][:count]
    if len(found) < count:
        raise ValueError(f"there are {len(found)} random tasks of the kinds {', '.join(kinds)}, not {count}")
    return found


def load(data: Path, task: RealTask) -> TaskSplit:
    """Read a real task, with at most `task.most` training texts."""
    split = labelled.load(data, labelled.DataTask(task.name, task.epochs))
    rows = np.random.default_rng(0).permutation(len(split.train))[: task.most].tolist()
    return TaskSplit(split.labels, split.train.at(rows), split.held_out, split.dev)


def digest(data: Path) -> str:
    """Return the hash of the recipe and the data of all real tasks."""
    parts = [f"{task}{labelled.digest(data, labelled.DataTask(task.name, task.epochs))}" for task in REAL_TASKS]
    return hashlib.sha256("".join(parts).encode()).hexdigest()
