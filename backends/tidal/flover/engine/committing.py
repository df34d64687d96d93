"""A runner whose passes commit memory within a budget: what slots hold for later prompts is released first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from tidal.flover.engine.runners import PassRunner, SharedRunner
from tidal.flover.engine.slots import GenerationSlots
from tidal.flover.memory.slots import SlotCopy, SlotMove
from tidal.flover.policies.committed import CommittedMemory
from tidal.flover.runner import PrefillInput
from tidal.flover.sampling import IntArray
from tidal.flover.tasks.adapter import LoraAdapter

# Bytes of a slot that are cleared at once: a large page.
_CLEARED_BYTES = 1 << 21


class CommittingRunner:
    """Passes of a runner, with the memory that they commit.

    The caller makes sure that the tokens of all sequences fit into the budget after each pass; the runner releases
    what else is committed.

    Args:
        shared: The runner.
        slots: Slots of the sequences.

    Attributes:
        memory: Memory committed to the slots.
        runs_mixed: Whether chunks of prompts and a decode step can share one pass.
    """

    def __init__(self, shared: SharedRunner, slots: GenerationSlots) -> None:
        self.runs_mixed = shared.runs_mixed
        self.memory = shared.memory
        self._shared = shared
        self._slots = slots
        shared.take_over(self)

    @contextmanager
    def use(self) -> Iterator[CommittingPasses]:
        """Hold the runner for one pass.

        Raises:
            Internal: Another owner has taken over.
        """
        with self._shared.use(self) as runner:
            yield CommittingPasses(runner, self.memory, self._slots)


class CommittingPasses:
    """The passes, see `PassRunner`.

    Args:
        runner: Runner that is held.
        memory: Memory committed to the slots.
        slots: Slots of the sequences.
    """

    def __init__(self, runner: PassRunner, memory: CommittedMemory, slots: GenerationSlots) -> None:
        self._runner, self._memory, self._slots = runner, memory, slots

    def prefill(
        self, slot: int, token_ids: IntArray, start: int, *, last: bool = True, task: LoraAdapter | None = None
    ) -> torch.Tensor | None:
        """See `PassRunner`."""
        self._commit({slot: start + len(token_ids)})
        return self._runner.prefill(slot, token_ids, start, last=last, task=task)

    def decode(
        self, begin: int, end: int, token_ids: IntArray, positions: IntArray, tasks: Sequence[LoraAdapter | None] = ()
    ) -> torch.Tensor:
        """See `PassRunner`."""
        self._commit({begin + row: position + 1 for row, position in enumerate(positions.tolist())})
        return self._runner.decode(begin, end, token_ids, positions, tasks)

    def mixed(
        self, slots: IntArray, token_ids: IntArray, positions: IntArray, chunks: Sequence[PrefillInput]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `PassRunner`."""
        # Of several rows of a slot the last one has the largest position.
        writes = {slot: position + 1 for slot, position in zip(slots.tolist(), positions.tolist(), strict=True)}
        self._commit(writes | {chunk.slot: chunk.start + len(chunk.token_ids) for chunk in chunks})
        return self._runner.mixed(slots, token_ids, positions, chunks)

    def move_slots(self, moves: Sequence[SlotMove], tokens: Sequence[int]) -> int:
        """See `PassRunner`."""
        release = self._memory.move([(each.source, each.target, each.exchange) for each in moves], tokens)
        return self._runner.move_slots(moves, tokens, release=release)

    def copy_slots(self, copies: Sequence[SlotCopy]) -> int:
        """See `PassRunner`. Free slots that are read are released where they and the copies exceed the budget."""
        sources = {copy.source for copy in copies}
        fits = self._commit({copy.target: copy.end for copy in copies}, pinned=sources)
        released = () if fits else sources.intersection(self._slots.use().free)
        copied = self._runner.copy_slots(copies, release=released)
        self._memory.released(released)
        self._slots.released(dict.fromkeys(released, 0))
        return copied

    def clear(self, slots: Sequence[int]) -> int:
        """Clear a part of the memory of slots without tokens, and return the bytes that are left."""
        uncleared = [slot for slot in slots if self._memory.uncleared(slot)]
        if uncleared:
            self._runner.clear(uncleared[0], *self._memory.clear(uncleared[0], _CLEARED_BYTES))
        return sum(map(self._memory.uncleared, uncleared))

    def repair(self) -> tuple[int, ...]:
        """Clear slots with non-finite values, and return them."""
        return self._runner.repair(self._memory.written)

    def _commit(self, writes: Mapping[int, int], pinned: Collection[int] = ()) -> bool:
        """Commit memory, and release other where the budget requires it; return whether that was enough."""
        fits = self._memory.fits(writes)
        if not fits and (kept := self._memory.release(writes, self._slots.use(), pinned)):
            self._runner.release(kept)
            self._slots.released(kept)
            fits = self._memory.fits(writes)
        self._memory.write(writes)
        return fits
