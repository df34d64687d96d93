"""Levels in this process: their outputs query by query, and a cascade's routes without a server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.tabi.tasks import TaskQueries
from testing.cascades import OpenLevel
from tidal.tabi.equations import request_key
from tidal.tabi.manifest import Candidate, TabiManifest
from tidal.tabi.pruning import kept_words, prune_ids, prune_text
from tidal.tabi.query_route import Route
from tidal.text.words import EncodedWords
from tidal_builders.tabi.data import LevelOutputs

Texts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoutedQuery:
    """The end of a query's route.

    Attributes:
        label: Label of the answer.
        level: Number of the last level that answered.
        probabilities: Probabilities of the ensemble, [classes].
        texts: Texts that this level has read.
    """

    label: str
    level: int
    probabilities: npt.NDArray[np.float64]
    texts: Texts


def collect(level: OpenLevel, queries: Sequence[EncodedWords]) -> LevelOutputs:
    """Run queries on a level one at a time, and measure the time of each.

    Args:
        level: Opened level.
        queries: Queries, tokenised for the level.
    """
    for query in queries[:5]:
        level.run(query)
    logits, importance, latency_ms = [], [], []
    for query in queries:
        start = time.perf_counter()
        found, received = level.run(query)
        latency_ms.append((time.perf_counter() - start) * 1e3)
        logits.append(found)
        importance.append(received)
    given = tuple(each for each in importance if each is not None)
    return LevelOutputs(np.stack(logits), given if len(given) == len(queries) else None, np.array(latency_ms))


@dataclass(frozen=True, slots=True)
class PrunedQueries:
    """Pruned queries for the next level, with each one's number of words before, and of removed words."""

    queries: tuple[EncodedWords, ...]
    words: npt.NDArray[np.int64]
    removed: npt.NDArray[np.int64]


def prune(
    queries: Sequence[EncodedWords],
    importance: Sequence[npt.NDArray[np.float32]],
    scale: float | None,
    reader: OpenLevel,
) -> PrunedQueries:
    """Prune queries by the importance of their words.

    Args:
        queries: Queries, tokenised for the level that gave the importance.
        importance: Attention that each token received, [length] for each query.
        scale: Scale α; None prunes nothing.
        reader: Level that the queries are pruned for.
    """
    left, removed = [], []
    for query, received in zip(queries, importance, strict=True):
        shorter = query if scale is None else _shorter(query, received, scale, reader)
        left.append(shorter)
        removed.append(len(query.spans) - len(shorter.spans))
    words = np.array([len(query.spans) for query in queries])
    return PrunedQueries(tuple(left), words, np.array(removed))


def route_offline(
    query: Texts,
    request_id: str,
    manifest: TabiManifest,
    candidate: Candidate,
    version: int,
    levels: Sequence[OpenLevel],
) -> RoutedQuery:
    """Compute the route that the server gives a request with this id: levels, draws, pruning and ensemble.

    Args:
        query: Text of the query, or its two texts.
        request_id: Id of the request.
        manifest: Manifest of the cascade.
        candidate: Candidate that serves.
        version: Version of the cascade.
        levels: Levels in the manifest's order.
    """
    key = request_key(request_id, [text.encode() for text in query])
    route = Route(manifest, candidate, key, 0, version, last_level=len(levels) - 1)
    at = route.level
    tokens = levels[at].read(query)
    while True:
        logits, received = levels[at].run(tokens)
        if not route.feed(logits):
            break
        reader = levels[route.level]
        if candidate.pruning is not None:
            assert received is not None
            tokens = _shorter(tokens, received, candidate.pruning, reader)
        if reader.vocabulary != levels[at].vocabulary:
            tokens = reader.read(tokens.texts)
        at = route.level
    answer = route.answer()
    assert answer.label is not None
    return RoutedQuery(manifest.labels[answer.label], answer.level, answer.outputs, tokens.texts)


def tokens_and_outputs(level: OpenLevel, queries: TaskQueries) -> tuple[tuple[EncodedWords, ...], LevelOutputs]:
    """Tokenise queries for a level, and run it on each.

    Args:
        level: Opened level.
        queries: Queries of the task.
    """
    tokens = tuple(level.read(texts) for texts in queries.texts)
    return tokens, collect(level, tokens)


def _shorter(query: EncodedWords, received: npt.NDArray[np.float32], scale: float, reader: OpenLevel) -> EncodedWords:
    kept = kept_words(query, received, scale)
    if query.separable:
        return prune_ids(query, kept)
    return reader.read(prune_text(query.texts, query.spans, kept))
