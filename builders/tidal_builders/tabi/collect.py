"""Runs levels over queries, one at a time on the engines that will serve, and keeps what they say by what they read."""

from __future__ import annotations

import bisect
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

import tidal
from tidal.arlo.manifest import load_arlo_manifest
from tidal.arlo.model import EncoderModel, TokenRow, open_model
from tidal.errors import InvalidArgument
from tidal.manifest import MANIFEST_FILE, sha256_file
from tidal.requests import Array
from tidal.text.words import EncodedWords, WordTokenizer
from tidal_builders.arrays import write_arrays
from tidal_builders.tabi.outputs import LevelOutputs
from tidal_builders.tabi.task_levels import CODE as TASK_LEVELS_CODE
from tidal_builders.tabi.task_levels import TaskRunner, task_info
from tidal_builders.workspace import Workspace

# Queries that a level answers before the next level's turn, and that are kept together. Levels take turns, so that a
# disturbance of the machine meets all of them.
_CHUNK = 256
_ATTENTION = "attention_received"
_FILE = "outputs.npz"

Texts = Sequence[tuple[str, ...]]
Progress = Callable[[float], None]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a level says to one query; logits in its own order."""

    logits: npt.NDArray[np.float32]
    importance: npt.NDArray[np.float32] | None
    latency_ms: float


class _Model:
    """A level that is a model of its own; see `TaskRunner`, which is one that is a task."""

    def __init__(self, version_dir: Path) -> None:
        manifest = load_arlo_manifest(version_dir)
        self.tokenizer, self.max_length = manifest.tokenizer.file, manifest.max_length
        self.attention = any(output.name == _ATTENTION for output in manifest.extra_outputs)
        self._folder = version_dir
        self._lengths = [runtime.max_length for runtime in manifest.runtimes]

    @cached_property
    def _model(self) -> EncoderModel:
        return open_model(self._folder, truncate=True)

    def run(self, query: EncodedWords) -> tuple[dict[str, Array], float]:
        """Run one query on the first engine, in the shortest runtime that takes it."""
        length = len(query.ids)
        rows = [TokenRow(query.ids, np.ones(length, np.int64), query.type_ids)]
        runtime, model = bisect.bisect_left(self._lengths, length), self._model
        begin = time.perf_counter()
        answer = model.run(0, runtime, rows)
        return answer, time.perf_counter() - begin


class Runner:
    """One level as it will be served, and every answer that it has given.

    Answers are kept in the workspace under the hash of the level's version, by the tokens that were read: what was run
    once, as a whole query or as one that pruning has left, is not run again. The engines are opened when something has
    to be run.

    Args:
        name: the level's, for progress.
        version_dir: its published version.
        order: the place of each of the cascade's labels in its logits; None where they agree.
        work: where answers are kept.
        task: of the version's model, that the level is; None: the model is the level.

    Raises:
        InvalidArgument: the version has no valid manifest, or its model no such task.
    """

    def __init__(
        self,
        name: str,
        version_dir: Path,
        order: tuple[int, ...] | None,
        work: Workspace,
        *,
        task: str | None = None,
    ) -> None:
        self.name = name
        self.key = answers_key(version_dir, task)
        self._level = _Model(version_dir) if task is None else TaskRunner(version_dir, task)
        self.tokenizer = WordTokenizer(version_dir / self._level.tokenizer, self._level.max_length, truncate=True)
        self._order, self._work = order, work
        self._attention = self._level.attention
        self._answers: dict[bytes, _Answer] = {}
        for stage in work.stages(self.key):
            self._take(work.directory(stage, lambda _: None))

    def read(self, texts: Texts) -> list[EncodedWords]:
        """Queries as the level reads them, cut to what fits it.

        Raises:
            InvalidArgument: a text cannot be read; names its row.
        """
        first, *second = ([text.encode() for text in part] for part in zip(*texts, strict=True))
        read = []
        for each in self.tokenizer.encode(first, second[0] if second else None):
            if isinstance(each, InvalidArgument):
                raise each
            read.append(each)
        return read

    def run(self, queries: Sequence[EncodedWords], progress: Progress = lambda _: None) -> LevelOutputs:
        """The level's answers to queries as it reads them; those that are not known yet are run.

        Logits are in the order of the cascade's labels.
        """
        keys = [_query_key(each.ids, each.type_ids) for each in queries]
        new = {key: each for key, each in zip(keys, queries, strict=True) if key not in self._answers}
        for done, chunk in _chunks(list(new.values())):
            progress(done / len(new))
            self._ask(chunk)
        answers = [self._answers[key] for key in keys]
        logits = np.stack([answer.logits for answer in answers])
        return LevelOutputs(
            logits if self._order is None else logits[:, list(self._order)],
            tuple(answer.importance for answer in answers if answer.importance is not None)
            if self._attention
            else None,
            np.asarray([answer.latency_ms for answer in answers]),
        )

    def time(self, query: EncodedWords) -> float:
        """Run a query again, and keep nothing of it.

        Returns:
            The milliseconds that its engine took.
        """
        return self._once(query).latency_ms

    def _ask(self, queries: Sequence[EncodedWords]) -> None:
        """Run queries and keep their answers, in memory and as a stage."""
        digest = hashlib.sha256(b"".join(_query_key(each.ids, each.type_ids) for each in queries)).hexdigest()
        self._take(self._work.directory(f"{self.key}-{digest[:16]}", lambda folder: self._fill(folder, queries)))

    def _fill(self, folder: Path, queries: Sequence[EncodedWords]) -> None:
        """Run queries and write down what they were and what came of them."""
        self._once(queries[0])  # the level before has used the caches
        answers = [self._once(each) for each in queries]
        arrays = {
            "ids": np.concatenate([each.ids for each in queries]).astype(np.int32),
            "type_ids": np.concatenate([each.type_ids for each in queries]).astype(np.int32),
            "lengths": np.asarray([len(each.ids) for each in queries]),
            "logits": np.stack([answer.logits for answer in answers]),
            "latency_ms": np.asarray([answer.latency_ms for answer in answers]),
        }
        if self._attention:
            arrays["importance"] = np.concatenate([answer.importance for answer in answers])
        write_arrays(folder / _FILE, arrays)

    def _take(self, folder: Path) -> None:
        """Learn the answers of a finished chunk."""
        with np.load(folder / _FILE, allow_pickle=False) as arrays:
            stored = {name: arrays[name] for name in arrays.files}
        bounds = np.cumsum(stored["lengths"])[:-1]
        ids, type_ids = (np.split(stored[name].astype(np.int64), bounds) for name in ("ids", "type_ids"))
        received = np.split(stored["importance"], bounds) if self._attention else None
        for row, latency_ms in enumerate(stored["latency_ms"].tolist()):
            self._answers[_query_key(ids[row], type_ids[row])] = _Answer(
                stored["logits"][row], None if received is None else received[row], latency_ms
            )

    def _once(self, query: EncodedWords) -> _Answer:
        """Run one query."""
        answer, seconds = self._level.run(query)
        importance = answer[_ATTENTION][0, : len(query.ids)].copy() if self._attention else None
        return _Answer(answer["logits"][0].copy(), importance, seconds * 1e3)


def collect(runners: Sequence[Runner], texts: Texts, progress: Progress) -> list[LevelOutputs]:
    """Run every level over all queries, the levels by turns.

    Args:
        runners: the levels.
        texts: the queries.
        progress: told the share that is done.

    Raises:
        InvalidArgument: a text cannot be read by a level's tokenizer.
    """
    read = [runner.read(texts) for runner in runners]
    for done, rows in _chunks(range(len(texts))):
        for number, (runner, queries) in enumerate(zip(runners, read, strict=True)):
            progress((done + len(rows) * number / len(runners)) / len(texts))
            runner.run([queries[row] for row in rows])
    progress(1.0)
    return [runner.run(queries) for runner, queries in zip(runners, read, strict=True)]


def answers_key(version_dir: Path, task: str | None = None) -> str:
    """What a level's answers depend on beside the query: its version, its task, and the code that runs it."""
    arlo = Path(tidal.__path__[0]) / "arlo"
    code = (
        (Path(__file__), arlo / "model.py", arlo / "shapes.py") if task is None else (Path(__file__), TASK_LEVELS_CODE)
    )
    parts = [sha256_file(version_dir / MANIFEST_FILE), *(sha256_file(path) for path in code)]
    if task is not None:
        parts.append(task_info(version_dir, task).fingerprint)
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def _chunks(items: Sequence[Item]) -> Iterator[tuple[int, Sequence[Item]]]:
    """Pieces of a sequence, each with the number of items before it."""
    for begin in range(0, len(items), _CHUNK):
        yield begin, items[begin : begin + _CHUNK]


def _query_key(ids: npt.NDArray[np.int64], type_ids: npt.NDArray[np.int64]) -> bytes:
    return hashlib.sha256(ids.tobytes() + b"/" + type_ids.tobytes()).digest()
