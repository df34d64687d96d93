"""Requests inside a cascade: their queries, their calls to levels, and the replies to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tidal.errors import InvalidArgument
from tidal.requests import Array, PendingRequest
from tidal.tabi.manifest import Candidate, CascadeTask, TabiManifest
from tidal.tabi.query_route import Route, ensembles
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
        tokens: Number of tokens for the first level that it went to; 0 before.
    """

    texts: QueryTexts
    route: Route
    encoded: EncodedWords | None = None
    answered: EncodedWords | None = None
    tokens: int = 0


@dataclass(eq=False, slots=True)
class CascadeJob:
    """A request whose rows are separate queries with the same options; re-routed rows go to the next level together.

    Attributes:
        request: Request to reply to.
        candidate: Configuration that its queries use.
        queries: One query per row.
        active: Queries that are at a level or go to one.
        skipped_first: Whether the level that was to answer first failed, and another one answers alone.
        fallback: Index of the level that the early router skipped, which answers if the last one cannot; else None.
    """

    request: PendingRequest
    candidate: Candidate
    queries: list[CascadeQuery]
    active: list[CascadeQuery] = field(default_factory=list)
    skipped_first: bool = False
    fallback: int | None = None

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


# Outputs that depend on the task.
ANSWERS: Mapping[CascadeTask, tuple[str, ...]] = {
    "classification": ("label", "probabilities"),
    "regression": ("value",),
    "rerank": ("score",),
}


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
        given = ["level", "confidence", "degraded", "input_tokens", "pruned_text"]
        given += ANSWERS[manifest.task]
        given += ["pruned_pair"] if manifest.pairs else []
        for name in sorted(declared - set(given)):
            raise InvalidArgument(
                f"config.pbtxt declares the output '{name}', which this {manifest.task} cascade does not give; "
                f"accepted: {', '.join(sorted(given))}"
            )

    def reply(self, jobs: Sequence[CascadeJob]) -> None:
        """Reply to requests, whose outputs are computed together.

        Args:
            jobs: Jobs whose queries have all been answered.
        """
        routes = [query.route for job in jobs for query in job.queries]
        columns = _Columns(self._labels, ensembles(routes), routes)
        end = 0
        for job in jobs:
            start, end = end, end + len(job.queries)
            request = job.request
            outputs: dict[str, Array] = {}
            for name in ("label", "probabilities", "value", "score", "level", "confidence", "degraded"):
                if request.wants(name):
                    outputs[name] = columns.of(name)[start:end]
            if job.skipped_first and "degraded" in outputs:
                outputs["degraded"] = np.ones_like(outputs["degraded"])
            if request.wants("input_tokens"):
                outputs["input_tokens"] = np.array([[query.tokens] for query in job.queries], np.int32)
            for part, name in enumerate(("pruned_text", "pruned_pair")):
                if request.wants(name):
                    outputs[name] = _answered_texts(job.queries, part)
            if request.record is not None:
                request.record.facts["level"] = [query.route.level + 1 for query in job.queries]
            request.reply(outputs)


class _Columns:
    """The outputs of many queries, each computed at first use.

    Args:
        labels: Labels of the cascade as BYTES, [classes].
        ensembles: Outputs of the queries' ensembles, float64 [rows, classes], for a regression [rows, 1].
        routes: Routes of the queries.
    """

    def __init__(self, labels: Array, ensembles: Array, routes: Sequence[Route]) -> None:
        self._labels = labels
        self._ensembles = ensembles
        self._routes = routes
        self._columns: dict[str, Array] = {}

    def of(self, name: str) -> Array:
        """Return an output of all queries, [rows, ...].

        Args:
            name: Name of the output.
        """
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = self._compute(name)
        return column

    def _compute(self, name: str) -> Array:
        if name == "label":
            return np.asarray(self._labels[self._ensembles.argmax(axis=-1)][:, None])
        if name == "score":  # the probability of the last class, relevant
            return np.asarray(self._ensembles[:, -1:], np.float32)
        if name == "level":
            return np.array([[route.level + 1] for route in self._routes], np.int32)
        if name == "confidence":
            return np.array([[route.confidence] for route in self._routes], np.float32)
        if name == "degraded":
            return np.array([[route.degraded] for route in self._routes])
        return self._ensembles.astype(np.float32)


def _answered_texts(queries: Sequence[CascadeQuery], part: int) -> Array:
    """Return one text of each query as the last level which answered has read it, BYTES [rows, 1]."""
    column = np.empty((len(queries), 1), object)
    for row, query in enumerate(queries):
        assert query.answered is not None  # some level has answered
        column[row, 0] = query.answered.texts[part].encode()
    return column
