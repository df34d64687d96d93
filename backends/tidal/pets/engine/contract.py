"""The contract between PetS engines and their callers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.engine.description import Description
from tidal.pets.terms import EncoderOutputs as EncoderOutputs
from tidal.pets.terms import FloatArray, Head, TaskTerms

Ids = npt.NDArray[np.integer[Any]]

PetsPrecision = Literal["fp32", "bf16"]
REMOVED_TASK = "the task was removed from the engine; accepted are tasks that `add` returned"


class LoadedTask:
    """A task in an engine's memory, made by that engine's `add` and valid for that engine only.

    Attributes:
        head: Head of the task.
        bytes: Memory of the task in bytes, head included.
    """

    __slots__ = ("__weakref__", "bytes", "head")

    def __init__(self, head: Head, packed: int) -> None:
        self.head = head
        self.bytes = packed + head.bytes


class PetsLane(Protocol):
    """Runs batches in which every row has a task of its own, one at a time."""

    def run(
        self,
        tasks: Sequence[LoadedTask | None],
        ids: Ids,
        lengths: Ids,
        type_ids: Ids | None = None,
        *,
        all_tokens: bool = False,
        attention: bool = False,
    ) -> EncoderOutputs:
        """Compute all outputs of a batch; further arguments and errors as in `PetsEngine.pooled`.

        Args:
            tasks: Task of each row.
            ids: Token ids.
            lengths: Number of real tokens of each row.
            type_ids: Token types.
            all_tokens: Whether the hidden states of all tokens are computed, and not only those of the first tokens:
                the last block then runs for all tokens.
            attention: Whether the attention that tokens receive is returned.

        Raises:
            Unsupported: The encoder was exported without attention, or without hidden states.
        """


class PetsEngine(PetsLane, Protocol):
    """An encoder with tasks; as a lane, it runs batches with all threads."""

    @property
    def description(self) -> Description:
        """Layers and sizes of the encoder."""

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
        """Remove a task; batches that are running with it finish undisturbed."""

    def pooled(
        self, tasks: Sequence[LoadedTask | None], ids: Ids, lengths: Ids, type_ids: Ids | None = None
    ) -> FloatArray:
        """Compute the pooled vectors of a batch.

        Args:
            tasks: Task of each row; None runs the base encoder without a task.
            ids: Token ids [rows, tokens]; rows are padded at the end with any valid id.
            lengths: Number of real tokens of each row [rows], at least 1.
            type_ids: Token types [rows, tokens]; None: all 0.

        Returns:
            Pooled vectors, float32 [rows, width].

        Raises:
            InvalidArgument: Shapes do not match, an id is outside the vocabulary, or a task was removed.
        """


@runtime_checkable
class LanedPetsEngine(PetsEngine, Protocol):
    """An engine with further contexts: its first lane has all threads, the others have one each."""

    @property
    def lanes(self) -> Sequence[PetsLane]:
        """The contexts; batches of the first and of others should not run at once, since they share the cores."""


def lanes_of(engine: PetsEngine) -> Sequence[PetsLane]:
    """Return the lanes of an engine, the one with all threads first."""
    return engine.lanes if isinstance(engine, LanedPetsEngine) else (engine,)


def answer(
    engine: PetsEngine, tasks: Sequence[LoadedTask], ids: Ids, lengths: Ids, type_ids: Ids | None = None
) -> list[FloatArray]:
    """Compute the logits of a batch whose tasks are classifications.

    Args:
        engine: Engine that holds the tasks.
        tasks: Task of each row.
        ids: Token ids [rows, tokens]; rows are padded at the end with any valid id.
        lengths: Number of real tokens of each row [rows], at least 1.
        type_ids: Token types [rows, tokens]; None: all 0.

    Returns:
        For each row, its task's logits, float32 [classes].

    Raises:
        InvalidArgument: As `PetsEngine.pooled`.
    """
    pooled = engine.pooled(tasks, ids, lengths, type_ids)
    return [task.head.weight @ vector + task.head.bias for task, vector in zip(tasks, pooled, strict=True)]


def no_hidden_error() -> Unsupported:
    """Make the error for an encoder that was exported without hidden states."""
    return Unsupported("this encoder gives pooled vectors only; build it again, with engine openvino or torch")


def no_attention_error() -> Unsupported:
    """Make the error for an encoder that was exported without the attention that tokens receive."""
    return Unsupported("this encoder gives no attention_received: build it with attention_received, on engine openvino")


def foreign_task_error(task: LoadedTask) -> InvalidArgument:
    """Make the error for a task that another engine loaded."""
    return InvalidArgument(f"a {type(task).__name__} is of another engine; accepted are tasks that `add` returned")
