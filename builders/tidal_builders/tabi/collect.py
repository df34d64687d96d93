"""Collects the levels' answers: each query alone, on the engines that will serve, cached by its tokens."""

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
from tidal.arlo.model import EncoderModel, open_model
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.errors import InvalidArgument
from tidal.manifest import MANIFEST_FILE, sha256_file
from tidal.requests import Array
from tidal.tabi.equations import relevance_logits
from tidal.text.words import EncodedWords, WordTokenizer
from tidal_builders.arrays import write_arrays
from tidal_builders.tabi.data import LevelOutputs
from tidal_builders.tabi.task_levels import CODE as TASK_LEVELS_CODE
from tidal_builders.tabi.task_levels import TaskRunner, task_info
from tidal_builders.workspace import Workspace

# Queries that a level answers before the next level runs, and that are stored together. The levels alternate, so that
# other work on the machine affects all of them.
_CHUNK = 256
_ATTENTION = "attention_received"
_FILE = "outputs.npz"

Texts = Sequence[tuple[str, ...]]
Progress = Callable[[float], None]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class _QueryAnswer:
    """A level's answer to one query; its logits are in the model's own order."""

    logits: npt.NDArray[np.float32]
    importance: npt.NDArray[np.float32] | None
    latency_ms: float


class _ModelRunner:
    """Runs a level that is a model; `TaskRunner` runs one that is a task."""

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
        """Run one query on the first engine, in the shortest runtime that fits it."""
        length = len(query.ids)
        rows = [TokenRow(query.ids, np.ones(length, np.int64), query.type_ids)]
        runtime, model = bisect.bisect_left(self._lengths, length), self._model
        begin = time.perf_counter()
        answer = model.run(0, runtime, rows)
        return answer, time.perf_counter() - begin


class LevelRunner:
    """Runs one level as it will be served, and caches its answers.

    Answers are stored in the workspace under the hash of the level's version, by the query's tokens: the same tokens,
    of a whole or a pruned query, are run once. The engines are opened when a query has to be run.

    Args:
        name: Name of the level, for progress.
        version_dir: Folder of its published version.
        order: Index of each of the cascade's labels in its logits; None if the order is the same.
        work: Workspace that stores the answers.
        task: Task of the version's model that is the level; None: the model is the level.
        reranks: Whether its only logit is that of a pair's relevance.

    Raises:
        InvalidArgument: The version has no valid manifest, or its model does not have the task.
    """

    def __init__(
        self,
        name: str,
        version_dir: Path,
        order: tuple[int, ...] | None,
        work: Workspace,
        *,
        task: str | None = None,
        reranks: bool = False,
    ) -> None:
        self._reranks = reranks
        self.name = name
        self.key = answers_key(version_dir, task)
        self._level = _ModelRunner(version_dir) if task is None else TaskRunner(version_dir, task)
        self.tokenizer = WordTokenizer(version_dir / self._level.tokenizer, self._level.max_length, truncate=True)
        self._order, self._work = order, work
        self._attention = self._level.attention
        self._answers: dict[bytes, _QueryAnswer] = {}
        for stage in work.stages(self.key):
            self._load_chunk(work.directory(stage, lambda _: None))

    def encode(self, texts: Texts) -> list[EncodedWords]:
        """Tokenise queries for the level, cut to its maximum length.

        Args:
            texts: Texts of the queries.

        Raises:
            InvalidArgument: A text cannot be tokenised; the message names its row.
        """
        first, *second = ([text.encode() for text in part] for part in zip(*texts, strict=True))
        encoded = []
        for each in self.tokenizer.encode(first, second[0] if second else None):
            if isinstance(each, InvalidArgument):
                raise each
            encoded.append(each)
        return encoded

    def run(self, queries: Sequence[EncodedWords], progress: Progress = lambda _: None) -> LevelOutputs:
        """Return the level's answers, with logits in the order of the cascade's labels; unknown queries are run.

        Args:
            queries: Queries, tokenised for the level.
            progress: Receives the completed share, 0 to 1.
        """
        keys = [_query_key(each.ids, each.type_ids) for each in queries]
        new = {key: each for key, each in zip(keys, queries, strict=True) if key not in self._answers}
        for done, chunk in _chunks(list(new.values())):
            progress(done / len(new))
            self._run_chunk(chunk)
        answers = [self._answers[key] for key in keys]
        logits = np.stack([answer.logits for answer in answers])
        if self._reranks:
            logits = relevance_logits(logits)
        return LevelOutputs(
            logits if self._order is None else logits[:, list(self._order)],
            tuple(answer.importance for answer in answers if answer.importance is not None)
            if self._attention
            else None,
            np.asarray([answer.latency_ms for answer in answers]),
        )

    def time(self, query: EncodedWords) -> float:
        """Run a query without storing its answer, and return the milliseconds that its engine took.

        Args:
            query: Query, tokenised for the level.
        """
        return self._run_one(query).latency_ms

    def _run_chunk(self, queries: Sequence[EncodedWords]) -> None:
        """Run queries and store their answers, in memory and as a stage."""
        digest = hashlib.sha256(b"".join(_query_key(each.ids, each.type_ids) for each in queries)).hexdigest()
        self._load_chunk(
            self._work.directory(f"{self.key}-{digest[:16]}", lambda folder: self._write_chunk(folder, queries))
        )

    def _write_chunk(self, folder: Path, queries: Sequence[EncodedWords]) -> None:
        """Run queries and write their tokens and answers to a folder."""
        self._run_one(queries[0])  # warms the caches, which the level before has used
        answers = [self._run_one(each) for each in queries]
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

    def _load_chunk(self, folder: Path) -> None:
        """Load the answers of a stored chunk."""
        with np.load(folder / _FILE, allow_pickle=False) as arrays:
            stored = {name: arrays[name] for name in arrays.files}
        bounds = np.cumsum(stored["lengths"])[:-1]
        ids, type_ids = (np.split(stored[name].astype(np.int64), bounds) for name in ("ids", "type_ids"))
        received = np.split(stored["importance"], bounds) if self._attention else None
        for row, latency_ms in enumerate(stored["latency_ms"].tolist()):
            self._answers[_query_key(ids[row], type_ids[row])] = _QueryAnswer(
                stored["logits"][row], None if received is None else received[row], latency_ms
            )

    def _run_one(self, query: EncodedWords) -> _QueryAnswer:
        """Run one query."""
        answer, seconds = self._level.run(query)
        importance = answer[_ATTENTION][0, : len(query.ids)].copy() if self._attention else None
        return _QueryAnswer(answer["logits"][0].copy(), importance, seconds * 1e3)


def collect(runners: Sequence[LevelRunner], texts: Texts, progress: Progress) -> list[LevelOutputs]:
    """Run every level over all queries, alternating between the levels.

    Args:
        runners: Runners of the levels.
        texts: Texts of the queries.
        progress: Receives the completed share, 0 to 1.

    Raises:
        InvalidArgument: A text cannot be tokenised by a level's tokenizer.
    """
    encoded = [runner.encode(texts) for runner in runners]
    for done, rows in _chunks(range(len(texts))):
        for number, (runner, queries) in enumerate(zip(runners, encoded, strict=True)):
            progress((done + len(rows) * number / len(runners)) / len(texts))
            runner.run([queries[row] for row in rows])
    progress(1.0)
    return [runner.run(queries) for runner, queries in zip(runners, encoded, strict=True)]


def answers_key(version_dir: Path, task: str | None = None) -> str:
    """Return the hash of what a level's answers depend on besides the query: its version, its task and the code.

    Args:
        version_dir: Folder of the level's version.
        task: Task that is the level; None: the model is the level.
    """
    arlo = Path(tidal.__path__[0]) / "arlo"
    code = (
        (Path(__file__), arlo / "model.py", arlo / "shapes.py") if task is None else (Path(__file__), TASK_LEVELS_CODE)
    )
    parts = [sha256_file(version_dir / MANIFEST_FILE), *(sha256_file(path) for path in code)]
    if task is not None:
        parts.append(task_info(version_dir, task).fingerprint)
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def _chunks(items: Sequence[Item]) -> Iterator[tuple[int, Sequence[Item]]]:
    """Split a sequence into chunks, each with the number of items before it."""
    for begin in range(0, len(items), _CHUNK):
        yield begin, items[begin : begin + _CHUNK]


def _query_key(ids: npt.NDArray[np.int64], type_ids: npt.NDArray[np.int64]) -> bytes:
    return hashlib.sha256(ids.tobytes() + b"/" + type_ids.tobytes()).digest()
