"""Requests on their way through a cascade, and the answers that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tidal.errors import InvalidArgument
from tidal.requests import Array, PendingRequest
from tidal.tabi.manifest import Candidate, TabiManifest
from tidal.tabi.reading import Texts
from tidal.tabi.route import Answer, Route
from tidal.text.words import EncodedWords


@dataclass(eq=False, slots=True)
class Query:
    """One row of a request.

    Attributes:
        texts: as they came.
        route: its way.
        reading: how the level reads it that it is at or goes to; None before the first.
        read: how the level read it that answered last.
    """

    texts: Texts
    route: Route
    reading: EncodedWords | None = None
    read: EncodedWords | None = None


@dataclass(eq=False, slots=True)
class Job:
    """A request whose rows are queries of their own that share its options; those that go on, go on together.

    Attributes:
        request: to be answered.
        candidate: the configuration that its queries take.
        queries: one a row.
        going: those that are at a level or go to one.
        skipped_first: whether the first level failed, and the next one answers alone.
    """

    request: PendingRequest
    candidate: Candidate
    queries: list[Query]
    going: list[Query] = field(default_factory=list)
    skipped_first: bool = False

    @property
    def has_answers(self) -> bool:
        """Whether some level has answered all its queries."""
        return self.queries[0].read is not None


@dataclass(eq=False, slots=True, weakref_slot=True)
class Visit:
    """A job's stay at a level, from when its queries are ready for it to the level's answer or failure.

    Attributes:
        job: whose queries that go on are meant.
        level: index of the level.
        ready: when it began, `time.monotonic()` seconds.
        until: when it is given up: the level's answer is of no use then.
        began: when a thread began to work on it; None while it waits.
        hurried: whether that is for the request's deadline, rather than for the time that levels get.
        ended: whether somebody has ended it, see `Station`.
    """

    job: Job
    level: int
    ready: float
    until: float
    began: float | None = None
    hurried: bool = False
    ended: bool = False

    @property
    def number(self) -> int:
        """The level's number, from 1."""
        return self.level + 1


class Answers:
    """Makes answers of queries whose ways have ended.

    Args:
        manifest: of the cascade.
        declared: outputs that config.pbtxt declares.

    Raises:
        InvalidArgument: config.pbtxt declares an output that the model does not give.
    """

    def __init__(self, manifest: TabiManifest, declared: frozenset[str]) -> None:
        self._labels = np.array([label.encode() for label in manifest.labels], object)
        given = ["level", "confidence", "degraded", "pruned_text"]
        given += ["value"] if manifest.task == "regression" else ["label", "probabilities"]
        given += ["pruned_pair"] if manifest.pairs else []
        for name in sorted(declared - set(given)):
            raise InvalidArgument(
                f"config.pbtxt declares the output '{name}', which this {manifest.task} cascade does not give; "
                f"accepted: {', '.join(sorted(given))}"
            )

    def reply(self, job: Job) -> list[Answer]:
        """Answer a request; what its queries were answered."""
        request = job.request
        answers = [query.route.answer() for query in job.queries]
        outputs: dict[str, Array] = {}
        if request.wants("label"):
            outputs["label"] = self._labels[np.array([answer.label for answer in answers])][:, None]
        for name in ("probabilities", "value"):
            if request.wants(name):
                outputs[name] = np.stack([answer.outputs for answer in answers]).astype(np.float32)
        if request.wants("level"):
            outputs["level"] = np.array([answer.level for answer in answers], np.int32)[:, None]
        if request.wants("confidence"):
            outputs["confidence"] = np.array([answer.confidence for answer in answers], np.float32)[:, None]
        if request.wants("degraded"):
            outputs["degraded"] = np.array([answer.degraded or job.skipped_first for answer in answers])[:, None]
        for part, name in enumerate(("pruned_text", "pruned_pair")):
            if request.wants(name):
                outputs[name] = _texts(job.queries, part)
        if request.record is not None:
            request.record.facts["level"] = [answer.level for answer in answers]
        request.reply(outputs)
        return answers


def _texts(queries: Sequence[Query], part: int) -> Array:
    """What the levels that answered last read of one text of each query, BYTES [rows, 1]."""
    column = np.empty((len(queries), 1), object)
    for row, query in enumerate(queries):
        assert query.read is not None  # some level has answered
        column[row, 0] = query.read.texts[part].encode()
    return column
