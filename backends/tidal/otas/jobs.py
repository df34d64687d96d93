"""Requests on their way through the `otas` service, and the answer that is made of their rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tidal.errors import TidalError
from tidal.otas.images import FloatArray
from tidal.otas.policies import Query
from tidal.otas.tasks import OtasTask, TaskParameters
from tidal.requests import Array, PendingRequest
from tidal.tasks.lease import Lease

# What answering may take of a query's time at most, whatever it took lately.
_MOST_ANSWERING = 0.1
OUTPUTS = ("gamma", "label", "logits", "probabilities", "queue_ms")


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """What came of a row: logits [classes], the γ that it ran at, and seconds from its arrival until it ran."""

    logits: FloatArray
    gamma: int
    queue_s: float


class Job:
    """A request, its images, and its task, which it keeps in memory until it is settled."""

    def __init__(self, request: PendingRequest, task: str, images: list[FloatArray]) -> None:
        self.request = request
        self.task = task
        self.utility = 1.0 if request.options.utility is None else request.options.utility
        self.deadline = math.inf  # of its answer, `time.monotonic()` seconds
        self.queries: list[Row] = []
        self.settled = False
        self._images = images
        self._answers: list[RowAnswer | None] = [None] * len(images)
        self._lease: Lease[OtasTask] | None = None

    def rows(self, lease: Lease[OtasTask], default_latency_s: float, answering_s: float) -> list[Row]:
        """The job's queries, now that its task is in memory.

        Args:
            lease: of the task, the job's own from now on.
            default_latency_s: seconds from arrival to deadline where the request names none.
            answering_s: that its answer may take once the engine is done, which its queries are not to use.
        """
        self._lease = lease
        request, parameters = self.request, lease.handle.parameters
        self.deadline = request.arrival + default_latency_s if request.deadline is None else request.deadline
        deadline = self.deadline - min(answering_s, _MOST_ANSWERING * (self.deadline - request.arrival))
        self.queries = [
            Row(self.task, request.arrival, deadline, self.utility, pixels=pixels, job=self, index=index, of=parameters)
            for index, pixels in enumerate(self._images)
        ]
        self._images = []
        return self.queries

    def finish(self, row: int, answer: RowAnswer) -> bool:
        """Keep what came of a row; whether all are there now. From one thread."""
        self._answers[row] = answer
        return all(answer is not None for answer in self._answers)

    def settle(self) -> None:
        """The request has come to its end: its task may go, and rows that were not run need not be."""
        self.settled = True
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def fail(self, error: TidalError) -> None:
        """Answer the request with an error."""
        self.settle()
        self.request.fail(error)

    @property
    def answers(self) -> list[RowAnswer]:
        """Of all rows, when they are there."""
        return [answer for answer in self._answers if answer is not None]


@dataclass(eq=False, slots=True)
class Row(Query):
    """A query of the policy, with what is needed to run and answer it; pixels [channels, height, width]."""

    pixels: FloatArray = field(kw_only=True)
    job: Job = field(kw_only=True)
    index: int = field(kw_only=True)
    of: TaskParameters = field(kw_only=True)


def batch_inputs(rows: Sequence[Row], gamma: int) -> tuple[FloatArray, FloatArray | None]:
    """Pixels [rows, channels, height, width] and, where γ is above 0, prompts [rows, layers, γ, width]."""
    pixels = np.stack([row.pixels for row in rows])
    return pixels, np.stack([row.of.prompts[gamma] for row in rows]) if gamma > 0 else None


def batch_logits(rows: Sequence[Row], gamma: int, features: FloatArray) -> list[FloatArray]:
    """Logits [classes] of every row by its own task's head; features [rows, width] were made at γ."""
    places: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(id(row.of), []).append(place)
    found: dict[int, FloatArray] = {}
    for of_task in places.values():
        logits = rows[of_task[0]].of.logits(gamma, features[of_task])
        found.update(zip(of_task, logits, strict=True))
    return [found[place] for place in range(len(rows))]


def reply(job: Job, labels: Sequence[str]) -> None:
    """Answer a request whose rows are all there; they may have run at several γ."""
    answers, request = job.answers, job.request
    logits = np.stack([answer.logits for answer in answers])
    outputs: dict[str, Array] = {"logits": logits}
    if request.wants("probabilities"):
        outputs["probabilities"] = _softmax(logits)
    if request.wants("label"):
        outputs["label"] = np.array([labels[place].encode() for place in logits.argmax(-1)], object)[:, None]
    if request.wants("gamma"):
        outputs["gamma"] = np.array([[answer.gamma] for answer in answers], np.int32)
    if request.wants("queue_ms"):
        outputs["queue_ms"] = np.array([[answer.queue_s * 1e3] for answer in answers], np.float32)
    if request.record is not None:
        request.record.facts["gamma"] = [answer.gamma for answer in answers]
    request.reply(outputs)


def _softmax(logits: FloatArray) -> npt.NDArray[np.float32]:
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True), np.float32)
