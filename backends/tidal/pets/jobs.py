"""Requests on their way through the `pets` service, and the answers that are made of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tidal.encoder_tasks.cutting import merge_results
from tidal.encoder_tasks.head import RowResult, TaskHead, stacked
from tidal.encoder_tasks.metrics import AnswerMetrics
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.encoder_tasks.windows import Windows
from tidal.errors import InvalidArgument, TidalError
from tidal.pets.engine.contract import EncoderOutputs, LoadedTask
from tidal.pets.engine.description import ATTENTION_RECEIVED
from tidal.pets.heads import INPUT_TOKENS, computed, head_task
from tidal.pets.library import ServedTask
from tidal.pets.policies import PetsQuery
from tidal.pets.terms import Head
from tidal.requests import Array, PendingRequest
from tidal.serving.classes import BatchOutputs, score_rows
from tidal.serving.rows import RequestRows
from tidal.tasks.lease import Lease, SharedLease


class PetsRequest(RequestRows[RowResult]):
    """A request and the results of its rows and windows so far.

    Args:
        request: Request whose rows run.
        count: Number of its rows and windows to run.
        tokens: Tokens of each row.
        windows: Windows over each row, None for a row that runs whole; None if all do.
        task: Task of encoders that the head of the request's task answers.
        answering: Converter of the head's outputs to answers.

    Attributes:
        tokens: Tokens of each row.
        windows: Windows over each row.
        task: Task of encoders.
        answering: Converter of the head's outputs to answers.
    """

    def __init__(
        self,
        request: PendingRequest,
        count: int,
        *,
        tokens: Sequence[TokenRow],
        windows: Sequence[Windows | None] | None,
        task: str,
        answering: TaskHead,
    ) -> None:
        super().__init__(request, count)
        self.tokens = tokens
        self.windows = windows
        self.task = task
        self.answering = answering


class NamedLease(NamedTuple):
    """A request, the name of its task, and the task in memory."""

    request: PendingRequest
    task: str
    lease: Lease[ServedTask]

    @property
    def head(self) -> Head:
        """Head of the task."""
        return self.lease.handle.loaded.head

    @property
    def answering(self) -> TaskHead:
        """Converter of the head's outputs to answers."""
        return self.lease.handle.answering

    def rows(
        self, queries: Sequence[TokenRow], tokens: Sequence[TokenRow], windows: Sequence[Windows | None] | None
    ) -> list[PetsRow]:
        """Make the request's queries; each of them has to release the lease once.

        Args:
            queries: Tokens of the rows and windows to run.
            tokens: Tokens of each row.
            windows: Windows over each row, None for a row that runs whole; None if all do.
        """
        loaded, kind, request = self.lease.handle.loaded, self.lease.handle.info.kind, self.request
        utility = 1.0 if request.options.utility is None else request.options.utility
        parent = PetsRequest(
            request, len(queries), tokens=tokens, windows=windows, task=loaded.head.task, answering=self.answering
        )
        shared = SharedLease(self.lease, len(queries))
        return [
            PetsRow(
                self.task, kind, len(row.ids), request.arrival, request.deadline, utility,
                tokens=row, parent=parent, index=index, loaded=loaded, lease=shared,
            )
            for index, row in enumerate(queries)
        ]  # fmt: skip


@dataclass(eq=False, slots=True)
class PetsRow(PetsQuery):
    """A query in the scheduler's queue, with what is needed to run and answer it.

    Attributes:
        tokens: Tokens of the row or window.
        parent: Request that the row belongs to.
        index: Index of the row or window in its request.
        loaded: Task in the engine.
        lease: Keeps the task in memory until all rows of the request have released it.
    """

    tokens: TokenRow = field(kw_only=True)
    parent: PetsRequest = field(kw_only=True)
    index: int = field(kw_only=True)
    loaded: LoadedTask = field(kw_only=True)
    lease: SharedLease = field(kw_only=True)

    @property
    def type_ids(self) -> Array:
        """Token types that the encoder reads [length]."""
        types = self.tokens.type_ids
        return types if self.loaded.head.token_types else np.zeros_like(types)


def wants_attention(request: PendingRequest) -> bool:
    """Whether the client requested the attention that tokens receive."""
    return request.wants(ATTENTION_RECEIVED)


def row_results(rows: Sequence[PetsRow], found: EncoderOutputs) -> list[RowResult]:
    """Return the result of each row of a batch, by the head of its task.

    Args:
        rows: Rows of the batch.
        found: Outputs of the encoder; hidden states of all tokens if a head reads them.
    """
    lengths = np.array([row.length for row in rows])

    def score(head: Head, indices: list[int]) -> tuple[BatchOutputs, Mapping[str, Array]]:
        ids = [rows[index].tokens.ids for index in indices]
        outputs = {head_task(head.task).engine_output: computed(head, found, indices, lengths[indices], ids)}
        if found.received is not None:
            outputs[ATTENTION_RECEIVED] = found.received[indices]
        return rows[indices[0]].parent.answering.batch(outputs), outputs

    scored = score_rows([row.loaded.head for row in rows], score)
    return [
        RowResult(batch, place, outputs, row.length, row.length)
        for row, ((batch, outputs), place) in zip(rows, scored, strict=True)
    ]


def reply(answered: PetsRequest, metrics: AnswerMetrics) -> None:
    """Answer a request whose rows have all run, and record it."""
    request, results = answered.request, answered.results
    attention = [ATTENTION_RECEIVED] if wants_attention(request) else []
    if answered.windows is not None:
        results = merge_results(answered.answering, answered.tokens, answered.windows, results, attention)
    try:
        outputs = answered.answering.answers(request, results, answered.tokens)
    except TidalError as error:
        request.fail(error)
        return
    metrics.answered(answered.task, answered.tokens, outputs)
    for name in attention:
        outputs[name] = stacked([result.values(name, per_token=True) for result in results])
    if request.wants(INPUT_TOKENS.name):
        outputs[INPUT_TOKENS.name] = np.array([[len(row.ids)] for row in answered.tokens], np.int32)
    request.reply(outputs, partial=True)


def check_wanted(head: Head, task: str, wanted: frozenset[str], declared: frozenset[str]) -> None:
    """Check that a task has the requested outputs, unless all that the model declares are, which is the default.

    Args:
        head: Head of the task.
        task: Name of the task.
        wanted: Names of the requested outputs.
        declared: Names of the outputs that config.pbtxt declares.

    Raises:
        InvalidArgument: It lacks one, or the model declares none that it has.
    """
    known = [output.name for output in head_task(head.task).outputs]
    lacking = sorted(wanted.difference(known) - {ATTENTION_RECEIVED, INPUT_TOKENS.name})
    if lacking and (wanted != declared or wanted.isdisjoint(known)):
        raise InvalidArgument(
            f"the output '{lacking[0]}' was requested of task '{task}', which is of {head.task} and has the outputs "
            f"{', '.join(known)}; request some of these that config.pbtxt declares"
        )
