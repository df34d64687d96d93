"""Calls to the models of a cascade's levels, with retries while a model is briefly unavailable."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidal.errors import Internal, InvalidArgument, TidalError, Unavailable
from tidal.requests import Array
from tidal.service import NEWEST, ModelCall, ModelUnavailable
from tidal.serving.backoff import backoff_s
from tidal.tabi.jobs import LevelCall
from tidal.tabi.levels import TaskLevels, TaskUnavailable
from tidal.tabi.manifest import Level, TabiManifest
from tidal.text.words import EncodedWords

# Output of a level with the attention that each token of a query receives.
IMPORTANCE = "attention_received"
# A level whose model is unavailable, because it is republished or restarted, is called again after pauses that double.
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
# How long a model may be unavailable before its level fails: shorter if a smaller level's answer is available.
_PATIENCE_S = 0.5
_PATIENCE_WITHOUT_ANSWER_S = 5.0
# A query whose calls met so many crashed processes may be what crashed them.
_MAX_CRASHES = 3
_MIN_REMAINING_MS = 0.001


@dataclass(frozen=True, slots=True)
class LevelAnswer:
    """Outputs of a level for some queries.

    Attributes:
        logits: FP32 [rows, classes], in the order of the cascade's labels; for a regression [rows, 1].
        importance: Attention that the tokens of each query received, FP32 [length]; None if it was not requested.
    """

    logits: npt.NDArray[np.float32]
    importance: tuple[npt.NDArray[np.float32], ...] | None


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """A level's answer and the call that gave it.

    Attributes:
        answer: The answer.
        started: Start of the call, `time.monotonic()` seconds.
        ended: End of the call, likewise.
        rows: Number of queries of its batch, those of other requests included where the level runs in this process.
    """

    answer: LevelAnswer
    started: float
    ended: float
    rows: int


class LevelModels:
    """The models of the levels, each called in the exact version that the cascade was built with.

    A level that is a task of a shared encoder is identified by the task: any version of its base is accepted.

    Args:
        call_model: Calls a model of the server.
        manifest: Manifest of the cascade being served.
        tasks: Check of the levels that are tasks.
    """

    def __init__(self, call_model: ModelCall, manifest: TabiManifest, tasks: TaskLevels) -> None:
        self._call_model = call_model
        self._tasks = tasks
        self._levels = manifest.levels
        self._orders = class_orders(manifest)

    def call(self, index: int, queries: Sequence[EncodedWords], *, attention: bool, latency_ms: float) -> LevelAnswer:
        """Run queries together on a level, and wait for its answer.

        Args:
            index: Index of the level.
            queries: Queries, encoded for the level.
            attention: Whether to request the attention that tokens receive.
            latency_ms: Time that remains for the call, milliseconds above 0.

        Raises:
            ModelUnavailable: The level's model cannot run it now.
            TaskUnavailable: The level's task is missing or cannot be used.
            TidalError: The model's own error, or its answer does not match the request.
        """
        level = self._levels[index]
        wanted = ["logits", IMPORTANCE] if attention else ["logits"]
        self._tasks.check(index)
        version = level.version if level.task is None else NEWEST
        inputs = _padded(level, queries)
        try:
            outputs = self._call_model(
                level.model, inputs, wanted, version=version, latency_ms=latency_ms, task=level.task
            )
        except InvalidArgument as error:
            if level.task is None:
                raise
            raise TaskUnavailable(str(error)) from None  # about the task, which the client did not choose
        return level_answer(outputs, queries, self._orders[index], attention=attention)


class RetryingLevels:
    """Calls levels, and repeats a call after a pause while the level's model is briefly unavailable.

    Args:
        models: Models of the levels.
        stop: Event that is set when there is no time left for pauses.
    """

    def __init__(self, models: LevelModels, stop: threading.Event) -> None:
        self._models = models
        self._stop = stop
        self._unavailable_since: dict[int, float] = {}  # by index of the level

    def call(self, call: LevelCall, *, attention: bool, has_answer: bool) -> TimedAnswer:
        """Run a call's queries together on its level, and wait for the answer.

        Args:
            call: Call whose active queries are encoded for its level.
            attention: Whether to request the attention that tokens receive.
            has_answer: Whether a smaller level's answer is available.

        Raises:
            ModelUnavailable: The level has been unavailable for too long.
            TidalError: The level's own error.
        """
        patience_s = _PATIENCE_S if has_answer else _PATIENCE_WITHOUT_ANSWER_S
        queries = [query.encoded for query in call.job.active if query.encoded is not None]
        retries, crashes = 0, 0
        while True:
            started = time.monotonic()
            latency_ms = max((call.expires - started) * 1e3, _MIN_REMAINING_MS)
            try:
                answer = self._models.call(call.level, queries, attention=attention, latency_ms=latency_ms)
            except ModelUnavailable as error:
                now = time.monotonic()
                pause_s = backoff_s(retries, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
                crashes += error.died
                unavailable_s = now - self._unavailable_since.setdefault(call.level, now)
                too_late = call.ended or now + pause_s >= call.expires
                if too_late or crashes >= _MAX_CRASHES or unavailable_s > patience_s or self._stop.wait(pause_s):
                    raise
                retries += 1
            else:
                self._unavailable_since.pop(call.level, None)
                return TimedAnswer(answer, started, time.monotonic(), len(queries))


def class_orders(manifest: TabiManifest) -> list[npt.NDArray[np.int64] | None]:
    """Return for each level the index of each of the cascade's labels in its logits; None for the same order."""
    return [None if level.order is None else np.asarray(level.order) for level in manifest.levels]


def level_answer(
    outputs: Mapping[str, Array],
    queries: Sequence[EncodedWords],
    order: npt.NDArray[np.int64] | None,
    *,
    attention: bool,
) -> LevelAnswer:
    """Return the answer that a model's outputs give.

    Args:
        outputs: Arrays by output name.
        queries: Queries of the call, encoded for the level.
        order: Index of each of the cascade's labels in the logits; None for the same order.
        attention: Whether the attention that tokens receive was requested.

    Raises:
        Internal: The outputs do not match the queries.
    """
    logits = outputs["logits"]
    if logits.ndim != 2 or len(logits) != len(queries):
        raise Internal(f"logits have shape {list(logits.shape)}; expected [{len(queries)}, classes]")
    if order is not None:
        if logits.shape[1] <= order.max():
            raise Internal(f"logits have {logits.shape[1]} classes; expected {order.max() + 1}")
        logits = logits[:, order]
    return LevelAnswer(logits, _split_importance(outputs[IMPORTANCE], queries) if attention else None)


def level_error(level: Level, number: int, error: TidalError) -> TidalError:
    """Return a level's error with the level's name in front, and the same code.

    Args:
        level: Level that failed.
        number: Number of the level, from 1.
        error: Error of its call.
    """
    kind = Unavailable if isinstance(error, Unavailable) else type(error)
    task = "" if level.task is None else f", task '{level.task}'"
    return kind(f"level {number}, model '{level.model}'{task}: {error}")


def _padded(level: Level, queries: Sequence[EncodedWords]) -> dict[str, Array]:
    """Return the model's inputs, INT64 [rows, longest query]."""
    shape = (len(queries), max(len(query.ids) for query in queries))
    inputs = {
        "input_ids": np.full(shape, level.tokenizer.pad_token_id, np.int64),
        "attention_mask": np.zeros(shape, np.int64),
    }
    if level.tokenizer.type_ids:
        inputs["token_type_ids"] = np.zeros(shape, np.int64)
    for row, query in enumerate(queries):
        length = len(query.ids)
        inputs["input_ids"][row, :length] = query.ids
        inputs["attention_mask"][row, :length] = 1
        if level.tokenizer.type_ids:
            inputs["token_type_ids"][row, :length] = query.type_ids
    return inputs


def _split_importance(importance: Array, queries: Sequence[EncodedWords]) -> tuple[npt.NDArray[np.float32], ...]:
    """Return each query's part of a batch's importance, without padding."""
    longest = max(len(query.ids) for query in queries)
    if importance.shape != (len(queries), longest):
        raise Internal(f"{IMPORTANCE} has shape {list(importance.shape)}; expected {[len(queries), longest]}")
    return tuple(row[: len(query.ids)] for row, query in zip(importance, queries, strict=True))
