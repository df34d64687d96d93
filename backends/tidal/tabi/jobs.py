"""Requests inside a cascade: their queries, their calls to levels, and the replies to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tidal.errors import InvalidArgument
from tidal.requests import Array, PendingRequest
from tidal.tabi.manifest import Candidate, TabiManifest
from tidal.tabi.route import CascadeAnswer, Route
from tidal.tabi.tokenization import QueryTexts
from tidal.text.words import EncodedWords


@dataclass(eq=False, slots=True)
class CascadeQuery:
    """One row of a request.

    Attributes:
        texts: Texts of the row as the client sent them.
        route: Route of the query through the levels.
        encoded: Tokens for the level that it is at or goes to next; None before the first.
        answered: Tokens that the last level which answered has read; None before the first answer.
    """

    texts: QueryTexts
    route: Route
    encoded: EncodedWords | None = None
    answered: EncodedWords | None = None


@dataclass(eq=False, slots=True)
class CascadeJob:
    """A request whose rows are separate queries with the same options; re-routed rows go to the next level together.

    Attributes:
        request: Request to reply to.
        candidate: Configuration that its queries use.
        queries: One query per row.
        active: Queries that are at a level or go to one.
        skipped_first: Whether the first level failed and the next one answers alone.
    """

    request: PendingRequest
    candidate: Candidate
    queries: list[CascadeQuery]
    active: list[CascadeQuery] = field(default_factory=list)
    skipped_first: bool = False

    @property
    def has_answers(self) -> bool:
        """Whether some level has answered all its queries."""
        return self.queries[0].answered is not None


@dataclass(eq=False, slots=True, weakref_slot=True)
class LevelCall:
    """A job's call to a level, from when its queries are ready for it until the level answers or fails.

    Attributes:
        job: Job whose active queries are sent.
        level: Index of the level.
        ready: When the queries were ready, `time.monotonic()` seconds.
        expires: When the call is abandoned because its answer would be too late, `time.monotonic()` seconds.
        started: When a worker started it, `time.monotonic()` seconds; None while it waits in the queue.
        with_deadline: Whether `expires` follows from the request's deadline rather than from the level's timeout.
        ended: Whether it was finished or abandoned, see `LevelQueue`.
    """

    job: CascadeJob
    level: int
    ready: float
    expires: float
    started: float | None = None
    with_deadline: bool = False
    ended: bool = False

    @property
    def number(self) -> int:
        """The level's number, from 1."""
        return self.level + 1


class ReplyBuilder:
    """Builds the replies to requests whose queries have all been answered.

    Args:
        manifest: Manifest of the cascade being served.
        declared: Names of the outputs that config.pbtxt declares.

    Raises:
        InvalidArgument: config.pbtxt declares an output that the cascade does not give.
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

    def reply(self, job: CascadeJob) -> list[CascadeAnswer]:
        """Reply to a request, and return the answers of its queries.

        Args:
            job: Job whose queries have all been answered.
        """
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
                outputs[name] = _answered_texts(job.queries, part)
        if request.record is not None:
            request.record.facts["level"] = [answer.level for answer in answers]
        request.reply(outputs)
        return answers


def _answered_texts(queries: Sequence[CascadeQuery], part: int) -> Array:
    """Return one text of each query as the last level which answered has read it, BYTES [rows, 1]."""
    column = np.empty((len(queries), 1), object)
    for row, query in enumerate(queries):
        assert query.answered is not None  # some level has answered
        column[row, 0] = query.answered.texts[part].encode()
    return column
