"""The `otas` service without a server: a fake transformer, a scripted policy, and tasks whose answers are known."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from testing.metrics import Counting
from testing.requests import TextRequest, make_context
from testing.waiting import until
from tests.otas.content import CONTENT
from tidal.metrics import Metrics
from tidal.otas.images import FloatArray, ImageDecoder
from tidal.otas.library import OtasLibrary, open_library
from tidal.otas.manifest import OtasManifest
from tidal.otas.policies import Batch, Decision, OtasPolicy, Query
from tidal.otas.service import OtasService
from tidal.otas.tasks import Head, OtasProvenance, TaskParameters, add_task
from tidal.service import ServiceContext
from tidal.tasks.folder import tasks_folder
from tidal.triton.keeper import ServiceKeeper

OUTPUTS = frozenset({"gamma", "input_tokens", "label", "logits", "probabilities", "queue_ms"})
MANIFEST = OtasManifest.model_validate(CONTENT)
GAMMA = 2  # adds prompts
MADE = OtasProvenance(source="a test")
SHAPE = MANIFEST.image.shape
MOST_PIXELS = 1 << 16


def pixels(*values: float) -> FloatArray:
    """Images, each of one value."""
    return np.stack([np.full(SHAPE, value, np.float32) for value in values])


def ask(task: str | None, *values: float, inputs: Mapping[str, Any] | None = None, **options: Any) -> TextRequest:
    """A request for a task with images, each of one value."""
    sent = {"pixel_values": pixels(*values)} if inputs is None else dict(inputs)
    named = {} if task is None else {"task": task}
    return TextRequest(*map(str, values), inputs=sent, wanted=OUTPUTS, **named, **options)


def features(gamma: int, values: Sequence[float], prompts: FloatArray | None) -> FloatArray:
    """Features by the fake transformer for images of one value each: the value, and γ plus the sum of the prompts."""
    second = np.full(len(values), gamma, np.float32)
    if prompts is not None:
        second += prompts.sum(axis=(1, 2, 3))
    return np.stack([np.asarray(values, np.float32), second], axis=1)


@dataclass
class FakeTransformer:
    """A fake transformer.

    Attributes:
        batches: γ and pixel values of each batch.
        before: Called with the number of a batch, from 0; may block or raise.
    """

    batches: list[tuple[int, list[float]]] = field(default_factory=list)
    before: Callable[[int], None] = lambda _number: None

    def __call__(self, gamma: int, pixel_values: FloatArray, prompts: FloatArray | None) -> FloatArray:
        values = [float(row.flat[0]) for row in pixel_values]
        self.batches.append((gamma, values))
        self.before(len(self.batches) - 1)
        return features(gamma, values, prompts)


class Scripted:
    """Runs up to `most` queries in order of arrival and cycles through γ; evicts late and `hopeless` queries."""

    def __init__(self, gammas: Sequence[int] = (0,), most: int = 8) -> None:
        self._gammas, self._most = itertools.cycle(gammas), most
        self._waiting: list[Query] = []
        self._running: Batch | None = None
        self.reported: list[float | None] = []
        self.added: list[Query] = []
        self.hopeless: Callable[[Query], bool] = lambda _query: False
        self.failure: BaseException | None = None

    @property
    def can_start(self) -> bool:
        return bool(self._waiting) and self._running is None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, query: Query, now: float) -> None:
        self._waiting.append(query)
        self.added.append(query)

    def remove(self, query: Query) -> bool:
        waits = query in self._waiting
        if waits:
            self._waiting.remove(query)
        return waits

    def clear(self) -> list[Query]:
        cleared, self._waiting = self._waiting, []
        return cleared

    def next(self, now: float) -> Decision:
        assert self._running is None
        if self.failure is not None:
            raise self.failure
        late = [query for query in self._waiting if query.deadline < now or self.hopeless(query)]
        waiting = [query for query in self._waiting if query not in late]
        taken, self._waiting = waiting[: self._most], waiting[self._most :]
        if taken:
            self._running = Batch(taken, next(self._gammas), 0.5)
        return Decision(self._running, late)

    def finished(self, batch: Batch, seconds: float | None) -> None:
        assert batch is self._running
        self._running = None
        self.reported.append(seconds)


@dataclass
class Tasks:
    """A folder of tasks with random parameters."""

    folder: Path
    parameters: dict[str, TaskParameters] = field(default_factory=dict)

    def add(self, name: str, classes: int, *, replace: bool = False) -> TaskParameters:
        draw = np.random.default_rng(classes)

        def values(*shape: int) -> FloatArray:
            return np.asarray(draw.normal(size=shape), np.float32)

        head, other = (Head(values(classes, MANIFEST.width), values(classes)) for _ in range(2))
        labels = tuple(f"{name} {number}" for number in range(classes))
        prompts = values(MANIFEST.layers, GAMMA, MANIFEST.width)
        self.parameters[name] = TaskParameters(labels, head, {-1: other}, {GAMMA: prompts})
        accuracy = dict.fromkeys(MANIFEST.gammas, 0.5)
        add_task(self.folder, name, self.parameters[name], accuracy, MANIFEST, MADE, replace=replace)
        return self.parameters[name]

    def logits(self, name: str, gamma: int, value: float) -> FloatArray:
        """Expected logits of a task for an image of one value."""
        of = self.parameters[name]
        head = of.heads.get(gamma, of.head)
        prompts = of.prompts[gamma][None] if gamma > 0 else None
        return np.asarray(head.weight @ features(gamma, [value], prompts)[0] + head.bias)


@dataclass
class Running(Counting):
    """A running service with its parts; lists have one item per start of the service."""

    system = "otas"
    keeper: ServiceKeeper
    transformer: FakeTransformer
    tasks: Tasks
    metrics: Metrics
    open: list[TextRequest]
    policies: list[OtasPolicy]
    libraries: list[OtasLibrary]

    def ask(self, *requests: TextRequest) -> None:
        self.open += requests
        self.keeper.submit(list(requests))


@contextmanager
def running(
    folder: Path,
    policy: Callable[[], Any] = Scripted,
    *,
    budget: int = 1 << 30,
    default_latency_s: float = 20.0,
    readers: int = 1,
) -> Iterator[Running]:
    """Run a service over the tasks in `<folder>/tasks`; at the end, every request must have been answered once."""
    metrics, transformer, tasks = Metrics("otas"), FakeTransformer(), Tasks(tasks_folder(folder))
    opened, policies, libraries = list[TextRequest](), list[Any](), list[OtasLibrary]()

    def start(context: ServiceContext) -> OtasService:
        policies.append(policy())
        libraries.append(open_library(tasks.folder, MANIFEST, budget, metrics))
        return OtasService(
            context,
            transformer,
            ImageDecoder(MANIFEST.image, MOST_PIXELS),
            SHAPE,
            libraries[-1],
            policies[-1],
            {},
            tokens=MANIFEST.tokens,
            default_latency_s=default_latency_s,
            readers=readers,
        )

    def fail_all(error: Any) -> None:
        for request in opened:
            request.fail(error)

    context = make_context(folder, metrics, model="v", outputs=OUTPUTS, failures=[])
    keeper = ServiceKeeper(context, start, fail_all)
    try:
        yield Running(keeper, transformer, tasks, metrics, opened, policies, libraries)
    finally:
        keeper.close(10)
    assert until(lambda: not [each for each in threading.enumerate() if each.name.startswith("v-")])
    assert [request.answers for request in opened] == [1] * len(opened)
