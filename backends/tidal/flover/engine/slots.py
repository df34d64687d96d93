"""The slots of generations, and the inputs of passes over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tidal.flover.generation import Generation
from tidal.flover.memory.slots import SlotCopy, SlotMove, SlotTable, Window
from tidal.flover.policies import PrefillChunk
from tidal.flover.runner import PrefillInput
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
        owners: Owners of the running slots.
        slots: Slot of each row, [rows] int64.
        token_ids: Last token of each row, [rows] int64.
        positions: Number of tokens held by each slot, [rows] int64.
    """

    owners: list[SlotOwner]
    slots: IntArray
    token_ids: IntArray
    positions: IntArray


class GenerationSlots:
    """Slots of all admitted generations.

    Args:
        count: Number of slots of the runner.
    """

    def __init__(self, count: int) -> None:
        self._table: SlotTable[SlotOwner] = SlotTable(count)
        self._owners: dict[Generation, tuple[SlotOwner, ...]] = {}

    @property
    def allocated(self) -> int:
        """Number of slots that are not free."""
        return self._table.count - self._table.free_count

    @property
    def running(self) -> int:
        """Number of slots in the decode step."""
        return self._table.running

    @property
    def running_generations(self) -> list[Generation]:
        """Generations in the decode step."""
        return list(dict.fromkeys(owner.generation for owner in self._running()))

    def allocate(self, generation: Generation) -> None:
        """Allocate all slots of a generation."""
        owners = tuple(SlotOwner(generation, index) for index in range(generation.slots))
        for owner in owners:
            self._table.allocate(owner)
        self._owners[generation] = owners
        generation.admitted = True

    def activate(self, generation: Generation) -> None:
        """Add a generation with its first token to the decode step."""
        for owner in self._owners[generation]:
            self._table.activate(owner)

    def free(self, generation: Generation) -> None:
        """Free the slots of a generation, if it has any."""
        for owner in self._owners.pop(generation, ()):
            self._table.free(owner)
        generation.admitted = False

    def compact(self) -> tuple[tuple[SlotMove, ...], list[int]]:
        """Make the running slots contiguous.

        Returns:
            The moves to carry out in memory, and the tokens held by each slot before them.
        """
        before = self._held()
        held = {owner: before[self._table.slot(owner)] for owners in self._owners.values() for owner in owners}
        return self._table.compact(held), before

    def prefill_input(self, chunk: PrefillChunk[Generation]) -> PrefillInput:
        """Input of a prefill pass for a chunk."""
        slot = self._table.slot(self._owners[chunk.item][0])
        return PrefillInput(slot, chunk.item.prompt_ids[chunk.start : chunk.end], chunk.start, chunk.last)

    def window_batch(self) -> WindowBatch:
        """Input of a decode step of all running slots, of which there is at least one."""
        window, rows = self._table.window, self._table.rows()
        owners = [owner for owner in rows if owner is not None]
        if len(owners) == len(rows):
            # Without holes the positions are those of the owners: nothing has to be known of other slots.
            positions = [owner.generation.held_tokens(owner.number) for owner in owners]
            indices = None
        else:
            positions = self._held()[window.begin : window.end]
            indices = [index for index, owner in enumerate(rows) if owner is not None]
        return WindowBatch(
            owners,
            indices,
            window,
            np.array([0 if owner is None else owner.generation.last_token(owner.number) for owner in rows], np.int64),
            np.array(positions, np.int64),
            [None if owner is None else owner.generation.task for owner in rows],
        )

    def row_batch(self) -> RowBatch:
        """Input of the decode rows of a mixed pass: all running slots, perhaps none."""
        owners = self._running()
        return RowBatch(
            owners,
            np.array([self._table.slot(owner) for owner in owners], np.int64),
            np.array([owner.generation.last_token(owner.number) for owner in owners], np.int64),
            np.array([owner.generation.held_tokens(owner.number) for owner in owners], np.int64),
        )

    def slot_copies(self, generation: Generation, copies: Sequence[SlotCopy]) -> list[SlotCopy]:
        """Copies between slots of the runner, from copies between the indices of a generation's slots."""
        slots = [self._table.slot(owner) for owner in self._owners[generation]]
        return [SlotCopy(slots[copy.source], slots[copy.target], copy.begin, copy.end) for copy in copies]

    def check(self) -> None:
        """Check the integrity of the slot table.

        Raises:
            Internal: It contradicts itself.
        """
        self._table.check()

    def _running(self) -> list[SlotOwner]:
        return [owner for owner in self._table.rows() if owner is not None]

    def _held(self) -> list[int]:
        """Tokens held by each slot."""
        held = [0] * self._table.count
        for owners in self._owners.values():
            for owner in owners:
                held[self._table.slot(owner)] = owner.generation.held_tokens(owner.number)
        return held
