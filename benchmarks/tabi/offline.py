"""Levels in this process: their outputs query by query, and a cascade's whole way without a server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.tabi.tasks import Queries
from tidal.arlo.model import TokenRow, open_model
from tidal.errors import InvalidArgument
from tidal.tabi.equations import request_key
from tidal.tabi.manifest import Candidate, TabiManifest
from tidal.tabi.pruning import kept_words, prune_ids, prune_text
from tidal.tabi.route import Route
from tidal.text.words import EncodedWords, WordTokenizer
from tidal_builders.tabi.data import LevelOutputs

Texts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Routed:
    """Where a query's way ended: its label, the number of the level that answered, and the texts that it read."""

    label: str
    level: int
    probabilities: npt.NDArray[np.float64]
    texts: Texts


class OpenLevel:
    """A published level with its engines in this process; `order` is the level's in the cascade's manifest."""

    def __init__(self, version_dir: Path, order: Sequence[int] | None) -> None:
        self._model = open_model(version_dir)
        self._order = slice(None) if order is None else list(order)
        manifest = self._model.manifest
        file = version_dir / manifest.tokenizer.file
        self._words = WordTokenizer(file, manifest.max_length, truncate=True)
        self.vocabulary = file.read_bytes()

    def read(self, texts: Texts) -> EncodedWords:
        """A query's tokens and words."""
        columns = [[text.encode()] for text in texts]
        found = self._words.encode(columns[0], columns[1] if len(columns) > 1 else None)[0]
        if isinstance(found, InvalidArgument):
            raise found
        return found

    def run(self, query: EncodedWords) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
        """Logits [classes] and, where the level gives it, each token's importance [length], of one query."""
        length = len(query.ids)
        runtime = next(i for i, each in enumerate(self._model.manifest.runtimes) if each.max_length >= length)
        outputs = self._model.run(0, runtime, [TokenRow(query.ids, np.ones(length, np.int64), query.type_ids)])
        received = outputs.get("attention_received")
        return outputs["logits"][0, self._order], None if received is None else received[0, :length]


def collect(level: OpenLevel, queries: Sequence[EncodedWords]) -> LevelOutputs:
    """What a level says to queries one at a time, and how long each takes it."""
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
class Pruned:
    """Queries as the next level reads them, with how many words each had and how many were removed."""

    queries: tuple[EncodedWords, ...]
    words: npt.NDArray[np.int64]
    removed: npt.NDArray[np.int64]


def prune(
    queries: Sequence[EncodedWords],
    importance: Sequence[npt.NDArray[np.float32]],
    scale: float | None,
    reader: OpenLevel,
) -> Pruned:
    """Prune queries by the importance that a level gave (α = `scale`; None prunes nothing), for `reader`."""
    left, removed = [], []
    for query, received in zip(queries, importance, strict=True):
        shorter = query if scale is None else _shorter(query, received, scale, reader)
        left.append(shorter)
        removed.append(len(query.spans) - len(shorter.spans))
    words = np.array([len(query.spans) for query in queries])
    return Pruned(tuple(left), words, np.array(removed))


def walk(
    query: Texts,
    request_id: str,
    manifest: TabiManifest,
    candidate: Candidate,
    version: int,
    levels: Sequence[OpenLevel],
) -> Routed:
    """The way that the server gives a request of this id: levels, draws, pruning and ensemble.

    Args:
        query: a text, or two.
        request_id: the request's.
        manifest: of the cascade.
        candidate: that serves.
        version: of the cascade.
        levels: in the manifest's order.
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
    return Routed(manifest.labels[answer.label], answer.level, answer.outputs, tokens.texts)


def tokens_and_outputs(level: OpenLevel, queries: Queries) -> tuple[tuple[EncodedWords, ...], LevelOutputs]:
    """Queries as a level reads them, and what it says to each."""
    tokens = tuple(level.read(texts) for texts in queries.texts)
    return tokens, collect(level, tokens)


def _shorter(query: EncodedWords, received: npt.NDArray[np.float32], scale: float, reader: OpenLevel) -> EncodedWords:
    kept = kept_words(query, received, scale)
    if query.separable:
        return prune_ids(query, kept)
    return reader.read(prune_text(query.texts, query.spans, kept))
