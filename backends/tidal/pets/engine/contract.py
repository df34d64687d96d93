"""What every engine of tasks is to its callers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.engine.description import Description
from tidal.pets.terms import FloatArray, Head, TaskTerms

Ids = npt.NDArray[np.integer[Any]]

PetsPrecision = Literal["fp32", "bf16"]
REMOVED_TASK = "the task was removed from the engine; accepted are tasks that `add` returned"


class LoadedTask:
    """A task that an engine can run; made by the engine's `add`, and of use to that engine alone.

    Attributes:
        head: its classifier.
        bytes: memory that it takes, its classifier included.
    """

    __slots__ = ("__weakref__", "bytes", "head")

    def __init__(self, head: Head, packed: int) -> None:
        self.head = head
        self.bytes = packed + head.weight.nbytes + head.bias.nbytes


@dataclass(frozen=True, slots=True)
class Attended:
    """What an encoder makes of a batch, where it gives the attention that tokens receive.

    Attributes:
        pooled: [rows, width].
        received: [rows, tokens], summed over layers, heads and the row's queries (Tabi §4.2); padding gets 0.
    """

    pooled: FloatArray
    received: FloatArray


class PetsEngine(Protocol):
    """What runs batches whose rows have tasks of their own; see `OpenVinoPetsEngine` for all that each of them does."""

    @property
    def description(self) -> Description:
        """Of the encoder."""

    def add(self, terms: TaskTerms, *, cost_key: str | None = None) -> LoadedTask:
        """Load a task into the engine's memory.

        Args:
            terms: Terms of the task, in the unified form.
            cost_key: Name under which the encoder's profile lists what the task's operators cost; only engines that
                spread operators over streams use it. None: the profile does not list them.

        Raises:
            InvalidArgument: The terms do not fit the encoder.
        """

    def remove(self, task: LoadedTask) -> None:
        """Let a task go; batches that run with it end undisturbed."""

    def pooled(
        self, tasks: Sequence[LoadedTask | None], ids: Ids, lengths: Ids, type_ids: Ids | None = None
    ) -> FloatArray:
        """Pooled vectors [rows, width] of a batch; where a row's task is None, the base's own.

        Args:
            tasks: of every row.
            ids: [rows, tokens] token ids, padded at the end of a row with any id.
            lengths: [rows] real tokens of every row, at least 1.
            type_ids: [rows, tokens] token types; zeros when absent.

        Raises:
            InvalidArgument: shapes differ, an id is none of the vocabulary, or a task was removed.
        """

    def attended(
        self, tasks: Sequence[LoadedTask | None], ids: Ids, lengths: Ids, type_ids: Ids | None = None
    ) -> Attended:
        """The same, and the attention that tokens receive; arguments and errors as of `pooled`.

        Raises:
            Unsupported: the encoder was exported without.
        """


def answer(
    engine: PetsEngine, tasks: Sequence[LoadedTask], ids: Ids, lengths: Ids, type_ids: Ids | None = None
) -> list[FloatArray]:
    """Answer a batch: for every row the logits of its task, [classes]; arguments and errors as of `Engine.pooled`."""
    pooled = engine.pooled(tasks, ids, lengths, type_ids)
    return [task.head.weight @ vector + task.head.bias for task, vector in zip(tasks, pooled, strict=True)]


def no_attention_error() -> Unsupported:
    """The error for an encoder that was exported without the attention that tokens receive."""
    return Unsupported("this encoder gives no attention_received: build it with attention_received, on engine openvino")


def foreign_task_error(task: LoadedTask) -> InvalidArgument:
    """The error for a task that another kind of engine made."""
    return InvalidArgument(f"a {type(task).__name__} is of another engine; accepted are tasks that `add` returned")
