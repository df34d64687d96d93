"""Requests and their rows on the way through the `otas` service, and the answer that is made of their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tidal.otas.images import FloatArray
from tidal.otas.policies import Query
from tidal.otas.tasks import OtasTask, TaskParameters
from tidal.requests import Array, PendingRequest
from tidal.serving.classes import CLASS_OUTPUTS, ClassScores, gather, score_rows
from tidal.serving.rows import RequestRows
from tidal.tasks.lease import Lease

# Largest share of a request's time that is reserved for its answer, however long answers took lately.
_MAX_ANSWER_SHARE = 0.1
OUTPUTS = ("gamma", "input_tokens", *CLASS_OUTPUTS, "queue_ms")


class RowResult(NamedTuple):
    """Result of a row.

    Attributes:
        scores: Scores of the rows of the batch that are of the same task.
        row: Index of the row in them.
        gamma: The γ that the row ran at.
        queue_s: Seconds from the row's arrival to the start of its batch.
    """

    scores: ClassScores
    row: int
    gamma: int
    queue_s: float


@dataclass(frozen=True, slots=True)
class ReadImages:
    """A request whose images have been decoded.

    Attributes:
        request: The request.
        task: Name of its task.
        images: Pixels of each row, of shape [channels, height, width].
    """

    request: PendingRequest
    task: str
    images: Sequence[FloatArray]


class OtasRequest:
    """An admitted request with its rows and its task, which stays in memory until the request ends.

    Args:
        read: The request and its images.
        lease: Lease of its task, which the request owns from now on.
        default_latency_s: Seconds from arrival to deadline for a request without a deadline.
        answering_s: Seconds that the answer may take after the engine is done, which its queries may not use.

    Attributes:
        request: The request.
        task: Name of its task.
        utility: Utility of each of its queries.
        deadline: Deadline of its answer, by `time.monotonic()`, in seconds.
        results: Results of its rows.
        rows: Its queries, in order.
    """

    def __init__(self, read: ReadImages, lease: Lease[OtasTask], default_latency_s: float, answering_s: float) -> None:
        self.request = request = read.request
        self.task = read.task
        self.utility = 1.0 if request.options.utility is None else request.options.utility
        self.deadline = request.arrival + default_latency_s if request.deadline is None else request.deadline
        self.results = RequestRows[RowResult](request, len(read.images))
        deadline = self.deadline - min(answering_s, _MAX_ANSWER_SHARE * (self.deadline - request.arrival))
        self.rows = [
            OtasRow(
                self.task, request.arrival, deadline, self.utility,
                pixels=pixels, parent=self, index=index, parameters=lease.handle.parameters,
            )
            for index, pixels in enumerate(read.images)
        ]  # fmt: skip
        self._lease = lease

    @property
    def ended(self) -> bool:
        """Whether the request needs no further results."""
        return self.results.ended

    def end(self) -> None:
        """Mark the request as ended: rows that have not run are skipped, and its task may leave memory."""
        self.results.ended = True
        self._lease.release()


@dataclass(eq=False, slots=True)
class OtasRow(Query):
    """A query in the policy's queue, with what is needed to run and answer it.

    Attributes:
        pixels: The image, of shape [channels, height, width].
        parent: Request that the row belongs to.
        index: Index of the row in its request.
        parameters: Prompts and heads of the row's task.
    """

    pixels: FloatArray = field(kw_only=True)
    parent: OtasRequest = field(kw_only=True)
    index: int = field(kw_only=True)
    parameters: TaskParameters = field(kw_only=True)


def batch_inputs(rows: Sequence[OtasRow], gamma: int) -> tuple[FloatArray, FloatArray | None]:
    """Return pixels [rows, channels, height, width] and, for γ above 0, prompts [rows, layers, γ, width]."""
    pixels = np.stack([row.pixels for row in rows])
    return pixels, np.stack([row.parameters.prompts[gamma] for row in rows]) if gamma > 0 else None


def row_results(rows: Sequence[OtasRow], gamma: int, features: FloatArray, started: float) -> list[RowResult]:
    """Return the result of each row of a batch, by the head of its own task.

    Args:
        rows: Rows of the batch.
        gamma: The γ that the batch ran at.
        features: Output of the transformer, of shape [rows, width].
        started: Start of the batch, by `time.monotonic()`, in seconds.
    """
    scored = score_rows([row.parameters for row in rows], lambda task, indices: task.scores(gamma, features[indices]))
    return [
        RowResult(scores, index, gamma, started - row.arrival)
        for row, (scores, index) in zip(rows, scored, strict=True)
    ]


def reply(answered: OtasRequest, tokens: int) -> None:
    """Answer a request all of whose rows have run, possibly at different γ.

    Args:
        answered: Request.
        tokens: Number of tokens of an image at the first layer, without prompts.
    """
    results, request = answered.results.results, answered.request
    scored = [(result.scores, result.row) for result in results]
    outputs: dict[str, Array] = {name: gather(scored, name) for name in CLASS_OUTPUTS if request.wants(name)}
    if request.wants("gamma"):
        outputs["gamma"] = np.array([[result.gamma] for result in results], np.int32)
    if request.wants("input_tokens"):
        outputs["input_tokens"] = np.full((len(results), 1), tokens, np.int32)
    if request.wants("queue_ms"):
        outputs["queue_ms"] = np.array([[result.queue_s * 1e3] for result in results], np.float32)
    if request.record is not None:
        request.record.facts["gamma"] = [result.gamma for result in results]
    request.reply(outputs)
