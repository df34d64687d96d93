"""Owners of slots, and the inputs of passes over them."""

from __future__ import annotations

from typing import NamedTuple

from tidal.flover.generation import Generation
from tidal.flover.memory.slots import Window
from tidal.flover.sampling import IntArray
from tidal.flover.tasks.adapter import LoraAdapter


class SlotOwner(NamedTuple):
    """Owner of one slot: a generation, or one of its beams.

    Attributes:
        generation: Generation that the slot belongs to.
        number: Index among the generation's slots; 0 is the one that the prompt is prefilled into.
    """

    generation: Generation
    number: int


class WindowBatch(NamedTuple):
    """Input of a decode step over a window of slots.

    Attributes:
        owners: Owners of the running slots, in order.
        rows: Index of each owner's row in the window; None without holes.
        window: Slots of the step.
        token_ids: Last token of each row, [window] int64; 0 for a hole.
        positions: Number of tokens held by each slot, [window] int64.
        tasks: Task of each row, None for the base model and for a hole.
    """

    owners: list[SlotOwner]
    rows: list[int] | None
    window: Window
    token_ids: IntArray
    positions: IntArray
    tasks: list[LoraAdapter | None]


class RowBatch(NamedTuple):
    """Input of the decode rows of a mixed pass, which has no holes.

    Attributes:
        owners: Owners of the running slots; each has one row, or one and those of its draft.
        slots: Slot of each row, [rows] int64.
        token_ids: Input token of each row, [rows] int64: the last one of its sequence, or a drafted one after it.
        positions: Position in its slot where each row's token is written, [rows] int64.
    """

    owners: list[SlotOwner]
    slots: IntArray
    token_ids: IntArray
    positions: IntArray
