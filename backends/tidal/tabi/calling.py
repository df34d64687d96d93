"""Asking the models of a cascade's levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidal.errors import Internal, InvalidArgument, TidalError, Unavailable
from tidal.requests import Array
from tidal.service import NEWEST, ModelCall
from tidal.tabi.manifest import Level, TabiManifest
from tidal.tabi.task_levels import SharedTasks, TaskUnavailable
from tidal.text.words import EncodedWords

_IMPORTANCE = "attention_received"


@dataclass(frozen=True, slots=True)
class LevelAnswer:
    """What a level answers to some queries.

    Attributes:
        logits: FP32 [rows, classes], in the order of the cascade's labels; of a regression [rows, 1].
        importance: of each query the attention that its tokens received, FP32 [length]; None where it was not asked.
    """

    logits: npt.NDArray[np.float32]
    importance: tuple[npt.NDArray[np.float32], ...] | None


class LevelModels:
    """The models of the levels, each asked for the exact version that the cascade was built with.

    Of a level that is a task of a shared encoder the task is what has to be the same: it is of any version of its base.

    Args:
        call: asks a model of the server.
        manifest: of the cascade.
        tasks: that levels are.
    """

    def __init__(self, call: ModelCall, manifest: TabiManifest, tasks: SharedTasks) -> None:
        self._call = call
        self._tasks = tasks
        self._levels = manifest.levels
        self._orders = [None if level.order is None else np.asarray(level.order) for level in manifest.levels]

    def ask(self, index: int, queries: Sequence[EncodedWords], *, attention: bool, latency_ms: float) -> LevelAnswer:
        """Run queries together on a level, and wait.

        Args:
            index: of the level.
            queries: as the level reads them.
            attention: whether to ask for the attention that tokens receive.
            latency_ms: what remains of the time for it, in milliseconds above 0.

        Raises:
            ModelUnavailable: the level's model cannot run it now.
            TaskUnavailable: the level is a task that is not there any more, or cannot be used.
            TidalError: the model's own error, or it answers something else than was asked.
        """
        level = self._levels[index]
        wanted = ["logits", _IMPORTANCE] if attention else ["logits"]
        self._tasks.check(index)
        version = level.version if level.task is None else NEWEST
        inputs = _padded(level, queries)
        try:
            outputs = self._call(level.model, inputs, wanted, version=version, latency_ms=latency_ms, task=level.task)
        except InvalidArgument as error:
            if level.task is None:
                raise
            raise TaskUnavailable(str(error)) from None  # of the task: what was asked is not what the client sent
        logits = outputs["logits"]
        if logits.ndim != 2 or len(logits) != len(queries):
            raise Internal(f"it gave logits of shape {list(logits.shape)} for {len(queries)} queries")
        order = self._orders[index]
        if order is not None:
            if logits.shape[1] <= order.max():
                raise Internal(f"it gave logits of {logits.shape[1]} classes, expected are {order.max() + 1}")
            logits = logits[:, order]
        return LevelAnswer(logits, _of_each(outputs[_IMPORTANCE], queries) if attention else None)


def named(level: Level, number: int, error: TidalError) -> TidalError:
    """A level's error as the cascade tells it, with the same code."""
    kind = Unavailable if isinstance(error, Unavailable) else type(error)
    task = "" if level.task is None else f", task '{level.task}'"
    return kind(f"level {number}, model '{level.model}'{task}: {error}")


def _padded(level: Level, queries: Sequence[EncodedWords]) -> dict[str, Array]:
    """Inputs INT64 [rows, longest query]."""
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


def _of_each(importance: Array, queries: Sequence[EncodedWords]) -> tuple[npt.NDArray[np.float32], ...]:
    """Each query's own part; shorter ones end in zeros."""
    longest = max(len(query.ids) for query in queries)
    if importance.shape != (len(queries), longest):
        raise Internal(
            f"it gave {_IMPORTANCE} of shape {list(importance.shape)}, expected is {[len(queries), longest]}"
        )
    return tuple(row[: len(query.ids)] for row, query in zip(importance, queries, strict=True))
