"""The `pets` service without a server: a fake engine, and tasks whose answers are known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from testing.metrics import Counting
from testing.requests import TextRequest, make_context
from testing.small_base import MADE, WIDTH, random_task, small_base
from testing.waiting import until
from tests.tabi.serving import write_tokenizer
from tidal.metrics import Metrics
from tidal.pets.copies import MergingOptions
from tidal.pets.engine.contract import EncoderOutputs
from tidal.pets.library import PetsLibrary, open_library
from tidal.pets.policies import Batching, PetsScheduler, joint
from tidal.pets.policies.merging import MergeRule
from tidal.pets.profile import Grid, PetsProfile
from tidal.pets.service import PetsService
from tidal.pets.tasks.folder import add_task
from tidal.pets.terms import FloatArray, TaskTerms
from tidal.pets.texts import TaskTexts
from tidal.profiles import LatencyProfile
from tidal.service import ServiceContext
from tidal.triton.keeper import ServiceKeeper

MAX_LENGTH, MAX_BATCH = 16, 8
OUTPUTS = frozenset({"label", "logits", "probabilities"})
BASE = small_base()


def profile(milliseconds: float, terms_ms: float) -> PetsProfile:
    """A profile in which every pass takes the same time, and so do the terms of every task."""
    axes: dict[str, Any] = {"lengths": (MAX_LENGTH,), "batches": (1, MAX_BATCH)}
    same = ((milliseconds, milliseconds),)
    return PetsProfile(
        shared=LatencyProfile(**axes, median_ms=same, p95_ms=same, threads=1),
        terms_ms={"bitfit": Grid(**axes, values=((terms_ms, terms_ms),))},
        memory_bytes=Grid(**axes, values=((1.0, 1.0),)),
    )


def ask(task: str | None, *texts: str, **options: Any) -> TextRequest:
    """A request for a task."""
    return TextRequest(*texts, wanted=OUTPUTS, **({} if task is None else {"task": task}), **options)


def texts(*lengths: int) -> list[str]:
    """Texts of these numbers of tokens, [CLS] and [SEP] included."""
    return [" ".join(["a"] * (length - 2)) for length in lengths]


@dataclass
class FakeTask:
    """A task in the fake engine."""

    terms: TaskTerms
    removed: bool = False

    @property
    def head(self) -> Any:
        return self.terms.head


@dataclass
class FakeEngine:
    """Pools a row into its number of tokens and its task's number of classes.

    Attributes:
        batches: Number of classes of each row's task, by batch.
        before: Called with the number of a batch, from 0, before it runs; may block or raise.
        adding: Called with a task's terms before it is added.
        description: What the service reads of an encoder's layers.
        narrow: Number of lanes with one thread each.
        used: Lane of each batch that ran on one of those.
    """

    batches: list[list[int]] = field(default_factory=list)
    tasks: list[FakeTask] = field(default_factory=list)
    before: Callable[[int], None] = lambda _number: None
    adding: Callable[[TaskTerms], None] = lambda _terms: None
    description: Any = field(default_factory=lambda: SimpleNamespace(packed=False))
    narrow: int = 0
    used: list[int] = field(default_factory=list)

    @property
    def lanes(self) -> list[Any]:
        """The engine, and single threads of it."""
        return [self, *(FakeLane(self, number + 1) for number in range(self.narrow))]

    def add(self, terms: TaskTerms, *, cost_key: str | None = None) -> FakeTask:
        self.adding(terms)
        task = FakeTask(terms)
        self.tasks.append(task)
        return task

    def remove(self, task: FakeTask) -> None:
        task.removed = True

    def pooled(self, tasks: Sequence[FakeTask], ids: Any, lengths: Sequence[int], type_ids: Any = None) -> FloatArray:
        number = len(self.batches)
        self.batches.append([len(task.head.labels) for task in tasks])
        self.before(number)
        assert not any(task.removed for task in tasks)
        assert ids.shape == type_ids.shape == (len(tasks), max(lengths))
        return np.stack([vector(length, len(task.head.labels)) for task, length in zip(tasks, lengths, strict=True)])

    def run(
        self,
        tasks: Sequence[FakeTask],
        ids: Any,
        lengths: Sequence[int],
        type_ids: Any = None,
        *,
        all_tokens: bool = False,
        attention: bool = False,
    ) -> EncoderOutputs:
        """Each token receives its position, from 1; so does padding, which must not be in answers."""
        received = np.tile(np.arange(1, ids.shape[1] + 1, dtype=np.float32), (len(tasks), 1))
        pooled = self.pooled(tasks, ids, lengths, type_ids)
        hidden = np.repeat(pooled[:, None], ids.shape[1] if all_tokens else 1, axis=1)
        return EncoderOutputs(pooled, hidden, received if attention else None)


@dataclass(frozen=True)
class FakeLane:
    """A lane with one thread of the fake engine."""

    engine: FakeEngine
    number: int

    def run(self, *arguments: Any, **options: Any) -> EncoderOutputs:
        self.engine.used.append(self.number)
        return self.engine.run(*arguments, **options)


def vector(length: int, classes: int) -> FloatArray:
    pooled = np.zeros(WIDTH, np.float32)
    pooled[:3] = 1, length, classes
    return pooled


@dataclass
class Tasks:
    """A folder of tasks, distinguished by their number of classes."""

    folder: Path
    terms: dict[str, TaskTerms] = field(default_factory=dict)

    def add(self, name: str, classes: int, *, kind: str = "bitfit", replace: bool = False) -> TaskTerms:
        self.terms[name] = random_task(kind, BASE, seed=classes, classes=classes)
        add_task(self.folder, name, kind, self.terms[name], BASE, MADE, replace=replace)
        return self.terms[name]

    def logits(self, name: str, length: int) -> FloatArray:
        """Expected logits of a task for a text of `length` tokens."""
        head = self.terms[name].head
        return np.asarray(head.weight @ vector(length, len(head.labels)) + head.bias)


@dataclass
class Running(Counting):
    """A running service with its parts; lists have one item per start of the service."""

    system = "pets"
    keeper: ServiceKeeper
    engine: FakeEngine
    tasks: Tasks
    metrics: Metrics
    open: list[TextRequest]
    schedulers: list[PetsScheduler]
    libraries: list[PetsLibrary]
    copies: list[FakeEngine]

    def ask(self, *requests: TextRequest) -> None:
        self.open += requests
        self.keeper.submit(list(requests))


@contextmanager
def running(
    folder: Path,
    *,
    budget: int = 1 << 30,
    batching: Batching = joint,
    milliseconds: float = 1.0,
    terms_ms: float = 0.0,
    merged_copies: int = 0,
    copying: Callable[[], None] = lambda: None,
    by_utility: bool = False,
    attention: bool = False,
    narrow: int = 0,
) -> Iterator[Running]:
    """Run a service over the tasks in `<folder>/tasks`; `copying` is called before each merged copy and may raise."""
    metrics, engine, tasks = Metrics("pets"), FakeEngine(narrow=narrow), Tasks(folder / "tasks")
    opened: list[TextRequest] = []
    schedulers, libraries, copies = list[PetsScheduler](), list[PetsLibrary](), list[FakeEngine]()
    texts = TaskTexts(write_tokenizer(folder / "tokenizer.json"), MAX_LENGTH)

    scheduler_tables = profile(milliseconds, terms_ms).tables()

    def open_copy(terms: TaskTerms) -> tuple[FakeEngine, FakeTask]:
        copying()
        copy = FakeEngine(narrow=narrow)
        copies.append(copy)
        return copy, copy.add(terms)

    def start(context: ServiceContext) -> PetsService:
        scheduler = PetsScheduler(scheduler_tables, batching, by_utility=by_utility, narrow=narrow)
        schedulers.append(scheduler)
        merging = MergingOptions(open_copy, scheduler_tables, MergeRule(merged_copies))
        libraries.append(open_library(tasks.folder, BASE, engine, texts.tokenizer, budget, metrics))
        return PetsService(
            context,
            texts,
            engine,
            libraries[-1],
            scheduler,
            merging,
            type_ids=True,
            attention=attention,
            lengths=(MAX_LENGTH,),
        )

    def fail_all(error: Any) -> None:
        for request in opened:
            request.fail(error)

    outputs = OUTPUTS | {"attention_received"} if attention else OUTPUTS
    context = make_context(folder, metrics, model="p", outputs=outputs, failures=[])
    keeper = ServiceKeeper(context, start, fail_all)
    try:
        yield Running(keeper, engine, tasks, metrics, opened, schedulers, libraries, copies)
    finally:
        keeper.close(10)
    assert until(lambda: not [each for each in threading.enumerate() if each.name.startswith("p-")])
