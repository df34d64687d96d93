"""Requests on their way through the `pets` service, and the answers that are made of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tidal.arlo.model import TokenRow
from tidal.pets.engine.contract import LoadedTask
from tidal.pets.engine.description import ATTENTION_RECEIVED
from tidal.pets.library import ServedTask
from tidal.pets.policies import PetsQuery
from tidal.pets.terms import FloatArray
from tidal.requests import Array, PendingRequest
from tidal.serving.rows import RequestRows
from tidal.serving.softmax import softmax
from tidal.tasks.lease import Lease, SharedLease

OUTPUTS = ("label", "logits", "probabilities")


class Vectors(NamedTuple):
    """Results of the encoder for one row.

    Attributes:
        pooled: Pooled vector, float32 [width].
        received: Attention that the row's tokens receive, float32 [length]; None if no row of the batch requested it.
    """

    pooled: FloatArray
    received: FloatArray | None


@dataclass(frozen=True, slots=True)
class TokenizedRequest:
    """A request, the name of its task, and the tokens of its rows."""

    request: PendingRequest
    task: str
    tokens: list[TokenRow]

    def rows(self, lease: Lease[ServedTask]) -> list[PetsRow]:
        """Make the request's queries; each of them has to release `lease` once.

        Args:
            lease: Lease of the request's task.
        """
        loaded, kind, request = lease.handle.loaded, lease.handle.info.kind, self.request
        utility = 1.0 if request.options.utility is None else request.options.utility
        parent, shared = PetsRequest(request, len(self.tokens)), SharedLease(lease, len(self.tokens))
        return [
            PetsRow(
                self.task, kind, len(tokens.ids), request.arrival, request.deadline, utility,
                tokens=tokens, parent=parent, index=index, loaded=loaded, lease=shared,
            )
            for index, tokens in enumerate(self.tokens)
        ]  # fmt: skip


PetsRequest = RequestRows[Vectors]


@dataclass(eq=False, slots=True)
class PetsRow(PetsQuery):
    """A query in the scheduler's queue, with what is needed to run and answer it.

    Attributes:
        tokens: Tokens of the row.
        parent: Request that the row belongs to.
        index: Index of the row in its request.
        loaded: Task in the engine.
        lease: Keeps the task in memory until all rows of the request have released it.
    """

    tokens: TokenRow = field(kw_only=True)
    parent: PetsRequest = field(kw_only=True)
    index: int = field(kw_only=True)
    loaded: LoadedTask = field(kw_only=True)
    lease: SharedLease = field(kw_only=True)


def wants_attention(request: PendingRequest) -> bool:
    """Whether the client requested the attention that tokens receive."""
    return request.wants(ATTENTION_RECEIVED)


def reply(answered: PetsRequest, task: LoadedTask) -> None:
    """Answer a request whose rows have all run.

    Args:
        answered: Request with the results of its rows.
        task: Task whose classifier computes the answer.
    """
    head, request = task.head, answered.request
    pooled = np.asarray([row.pooled for row in answered.results], np.float32)
    logits = np.asarray(pooled @ head.weight.T + head.bias, np.float32)
    outputs: dict[str, Array] = {"logits": logits}
    if wants_attention(request):
        outputs[ATTENTION_RECEIVED] = _received(answered.results)
    if request.wants("probabilities"):
        outputs["probabilities"] = softmax(logits, dtype=np.float32)
    if request.wants("label"):
        labels = [head.labels[position].encode() for position in logits.argmax(-1)]
        outputs["label"] = np.array(labels, object)[:, None]
    request.reply(outputs)


def _received(results: Sequence[Vectors]) -> FloatArray:
    """Attention that tokens receive, [rows, longest row]; shorter rows are padded with zeros."""
    received = [row.received for row in results if row.received is not None]  # all have it, see `wants_attention`
    padded = np.zeros((len(received), max(map(len, received))), np.float32)
    for row, values in enumerate(received):
        padded[row, : len(values)] = values
    return padded
