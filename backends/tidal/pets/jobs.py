"""Requests on their way through the `pets` service, and the answer that is made of their rows."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tidal.arlo.model import TokenRow, probabilities
from tidal.errors import TidalError
from tidal.pets.engine.contract import LoadedTask
from tidal.pets.engine.description import ATTENTION_RECEIVED
from tidal.pets.library import ServedTask
from tidal.pets.policies import PetsQuery
from tidal.pets.terms import FloatArray
from tidal.requests import Array, PendingRequest
from tidal.tasks.lease import Lease

OUTPUTS = ("label", "logits", "probabilities")


class Vectors(NamedTuple):
    """What the encoder made of a row: its pooled vector [width], and the attention that its tokens received [length],
    None where no row of the batch asked for it."""

    pooled: FloatArray
    received: FloatArray | None


class PetsJob:
    """A request, its tokens, and its task, which it keeps in memory while any of its rows waits or runs."""

    def __init__(self, request: PendingRequest, task: str, tokens: list[TokenRow]) -> None:
        self.request = request
        self.task = task
        self.tokens = tokens
        self.failed = False
        self._lease: Lease[ServedTask] | None = None
        self._vectors: list[Vectors | None] = [None] * len(tokens)
        self._unanswered = self._held = len(tokens)
        self._lock = threading.Lock()

    def rows(self, lease: Lease[ServedTask]) -> list[PetsRow]:
        """The job's queries, now that its task is in memory; each of them is to `leave` once."""
        self._lease = lease
        loaded, kind, request = lease.handle.loaded, lease.handle.info.kind, self.request
        utility = 1.0 if request.options.utility is None else request.options.utility
        return [
            PetsRow(
                self.task, kind, len(tokens.ids), request.arrival, request.deadline, utility,
                tokens=tokens, job=self, index=index, loaded=loaded,
            )
            for index, tokens in enumerate(self.tokens)
        ]  # fmt: skip

    def finish(self, row: int, vectors: Vectors) -> bool:
        """Keep what a row was made into; whether it was the last row."""
        self._vectors[row] = vectors
        with self._lock:
            self._unanswered -= 1
            return self._unanswered == 0

    def fail(self, error: TidalError) -> None:
        """Answer the request with an error; its rows are of no use any more."""
        if not self.failed:
            self.failed = True
            self.request.fail(error)

    def leave(self) -> None:
        """A row neither waits nor runs any more; with the last one the task may leave memory."""
        with self._lock:
            self._held -= 1
            lease = self._lease if self._held == 0 else None
        if lease is not None:
            lease.release()

    @property
    def attends(self) -> bool:
        """Whether the attention that its tokens receive is asked for."""
        return self.request.wants(ATTENTION_RECEIVED)

    @property
    def pooled(self) -> FloatArray:
        """[rows, width], when all rows are there."""
        return np.asarray([row.pooled for row in self._vectors if row is not None], np.float32)

    @property
    def received(self) -> FloatArray:
        """[rows, longest row], when all rows are there; shorter ones end in zeros."""
        found = np.zeros((len(self.tokens), max(len(row.ids) for row in self.tokens)), np.float32)
        for place, row in enumerate(self._vectors):
            assert row is not None
            assert row.received is not None  # see `attends`
            found[place, : len(row.received)] = row.received
        return found


@dataclass(eq=False, slots=True)
class PetsRow(PetsQuery):
    """A query in the scheduler's queue, with what is needed to run and answer it."""

    tokens: TokenRow = field(kw_only=True)
    job: PetsJob = field(kw_only=True)
    index: int = field(kw_only=True)
    loaded: LoadedTask = field(kw_only=True)


def reply(job: PetsJob, task: LoadedTask) -> None:
    """Answer a request whose rows are all there, by its task's own classifier."""
    head, request = task.head, job.request
    logits = np.asarray(job.pooled @ head.weight.T + head.bias, np.float32)
    outputs: dict[str, Array] = {"logits": logits}
    if job.attends:
        outputs[ATTENTION_RECEIVED] = job.received
    if request.wants("probabilities"):
        outputs["probabilities"] = probabilities(logits)
    if request.wants("label"):
        labels = [head.labels[place].encode() for place in logits.argmax(-1)]
        outputs["label"] = np.array(labels, object)[:, None]
    request.reply(outputs)
