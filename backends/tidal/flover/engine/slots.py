"""The slots of generations, the tokens that they reuse, and the inputs of passes over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from tidal.flover.beams import BeamGroup
from tidal.flover.engine.batches import RowBatch, SlotOwner, WindowBatch
from tidal.flover.generation import Generation
from tidal.flover.memory.contents import SlotContents
from tidal.flover.memory.slots import SlotCopy, SlotMove, SlotTable
from tidal.flover.policies import PrefillChunk
from tidal.flover.policies.committed import SlotUse
from tidal.flover.policies.prefixes import LEAST_REUSED, FreeSlot, choose_slot, common_prefix
from tidal.flover.runner import PrefillInput
from tidal.flover.sampling import IntArray


class GenerationSlots:
    """Slots of all admitted generations; the `Prefixes` of their prompts.

    Args:
        count: Number of slots of the runner.
        reuse: Whether free slots keep their tokens for later prompts that begin with them.
    """

    def __init__(self, count: int, *, reuse: bool) -> None:
        self._table: SlotTable[SlotOwner] = SlotTable(count)
        self._contents = SlotContents(count)
        self._reuse = reuse
        self._owners: dict[Generation, tuple[SlotOwner, ...]] = {}

    @property
    def count(self) -> int:
        """Number of slots."""
        return self._table.count

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
        """Allocate all slots of a generation, and record the tokens that its first one holds already."""
        owners = tuple(SlotOwner(generation, index) for index in range(generation.slots))
        for owner in owners:
            slot = self._table.allocate(owner, partial(self._choose, owner))
            common = min(self._common(slot, owner), generation.prefill_tokens - 1)
            if common >= LEAST_REUSED:
                self._reused(generation, common)
            self._contents.forget([slot])
        self._owners[generation] = owners
        generation.admitted = True

    def of(self, generation: Generation) -> list[int]:
        """Slots of a generation."""
        return [self._table.slot(owner) for owner in self._owners[generation]]

    def reusable(self, item: Generation) -> int:
        """See `Prefixes`."""
        return max(item.prefilled, self._source(item)[1])

    def shared(self, item: Generation, other: Generation) -> int:
        """See `Prefixes`."""
        if not self._reuse or item.task is not other.task:
            return 0
        return common_prefix(item.prefill_ids, other.prefill_ids)

    def reuse(self, generation: Generation, tokens: int) -> SlotCopy:
        """Copy of the tokens to prefill up to `tokens`, at most `reusable`, that a generation's slot lacks."""
        source, _ = self._source(generation)
        copy = SlotCopy(source, self._table.slot(self._owners[generation][0]), generation.prefilled, tokens)
        self._contents.touch(source)
        self._reused(generation, tokens)
        return copy

    def _reused(self, generation: Generation, tokens: int) -> None:
        """Record that the tokens up to `tokens` need no prefill; those of a preempted one were counted before."""
        if not generation.preempted:
            generation.cached_tokens += tokens - generation.prefilled
        generation.prefilled = tokens

    def activate(self, generation: Generation) -> None:
        """Add a generation with its first token to the decode step."""
        for owner in self._owners[generation]:
            self._table.activate(owner)

    def free(self, generation: Generation, *, sound: bool = True) -> None:
        """Free the slots of a generation, if it has any.

        Args:
            generation: Generation that has ended.
            sound: Whether later prompts may reuse what they hold.
        """
        for owner in self._owners.pop(generation, ()):
            slot = self._table.slot(owner)
            self._table.free(owner)
            if self._reuse and sound:
                self._contents.keep(slot, _held_ids(owner), generation.task)
        generation.admitted = False

    def forget(self, slots: Iterable[int]) -> None:
        """Record that slots were cleared."""
        self._contents.forget(slots)

    def use(self) -> SlotUse:
        """Return how slots are used."""
        return SlotUse(self._held(), sorted(self._table.free_slots, key=self._contents.last_used))

    def released(self, kept: Mapping[int, int]) -> None:
        """Record that memory of slots was released.

        Args:
            kept: Number of tokens that slots hold at most, by slot.
        """
        for slot, tokens in kept.items():
            self._contents.shorten(slot, tokens)

    def compact(self) -> tuple[tuple[SlotMove, ...], list[int]]:
        """Make the running slots contiguous.

        Returns:
            The moves to carry out in memory, and the tokens held by each slot before them; both empty without moves.
        """
        if self._table.contiguous:
            return (), []
        before = self._held()
        held = {owner: before[self._table.slot(owner)] for owners in self._owners.values() for owner in owners}
        moves = self._table.compact(held, self._contents.tokens())
        self._contents.moved(moves)
        return moves, before

    def prefill_input(self, chunk: PrefillChunk[Generation]) -> PrefillInput:
        """Input of a prefill pass for a chunk."""
        slot = self._table.slot(self._owners[chunk.item][0])
        return PrefillInput(slot, chunk.item.prefill_ids[chunk.start : chunk.end], chunk.start, chunk.last)

    def window_batch(self) -> WindowBatch:
        """Input of a decode step of all running slots, of which there is at least one."""
        window, rows = self._table.window, self._table.rows()
        owners = [owner for owner in rows if owner is not None]
        if len(owners) == len(rows):
            # Without holes the positions are those of the owners: nothing has to be known of other slots.
            positions = [generation.held_tokens(number) for generation, number in owners]
            indices = None
        else:
            # A step writes to holes, at the first position where they hold nothing.
            self._contents.forget(window.begin + index for index, owner in enumerate(rows) if owner is None)
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

    def draft_batch(self, drafts: Mapping[Generation, Sequence[int]]) -> RowBatch:
        """Input of a pass over all running slots with drafted tokens after the last token of some generations."""
        owners = self._running()
        slots, token_ids, positions = list[int](), list[int](), list[int]()
        for owner in owners:
            generation, number = owner
            ids = (generation.last_token(number), *drafts.get(generation, ()))
            held = generation.held_tokens(number)
            slots += [self._table.slot(owner)] * len(ids)
            token_ids += ids
            positions += range(held, held + len(ids))
        return RowBatch(owners, np.array(slots, np.int64), np.array(token_ids, np.int64), np.array(positions, np.int64))

    def slot_copies(self, generation: Generation, copies: Sequence[SlotCopy]) -> list[SlotCopy]:
        """Copies between slots of the runner, from copies between the indices of a generation's slots."""
        slots = self.of(generation)
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
        """Tokens held by each slot, those for later prompts included."""
        held = [0] * self._table.count
        for slot, tokens in self._contents.tokens().items():
            held[slot] = tokens
        for owners in self._owners.values():
            for owner in owners:
                held[self._table.slot(owner)] = owner.generation.held_tokens(owner.number)
        return held

    def _choose(self, owner: SlotOwner, free: Mapping[int, int]) -> int:
        """Choose a free slot for an owner, from the distance to the window by slot."""
        contents = self._contents
        seen = []
        for slot, distance in free.items():
            held = contents.of(slot)
            if held is None:
                seen.append(FreeSlot(slot, 0, 0, contents.last_used(slot), distance))
            else:
                common = self._common(slot, owner)
                seen.append(FreeSlot(slot, len(held.ids), common, contents.last_used(slot), distance))
        return choose_slot(seen)

    def _common(self, slot: int, owner: SlotOwner) -> int:
        """Number of tokens of a free slot that an owner's prompt begins with; 0 if no prompt is prefilled into it."""
        held = self._contents.of(slot)
        if held is None or owner.number:
            return 0
        generation = owner.generation
        return held.common(generation.prefill_ids, generation.prefill_start, generation.task)

    def _source(self, item: Generation) -> tuple[int, int]:
        """The slot with the longest prefix of a prompt, and its number of tokens; 0 if a copy would not pay."""
        found = 0, 0
        if not self._reuse or item.prefill_tokens - 1 - item.prefilled < LEAST_REUSED:
            return found
        wanted, start = SlotOwner(item, 0), item.prefill_start
        for slot in self._contents.starting_with(start):
            found = max(found, (slot, self._common(slot, wanted)), key=_tokens)
        for other, owners in self._owners.items():
            alike = other.prefill_start == start or other.prefill_tokens < LEAST_REUSED
            if alike and other is not item and other.task is item.task:
                found = max(found, (self._table.slot(owners[0]), _common_held(owners[0], item)), key=_tokens)
        slot, common = found
        tokens = min(common, item.prefill_tokens - 1)
        return (slot, tokens) if tokens - item.prefilled >= LEAST_REUSED else (0, 0)


def _tokens(found: tuple[int, int]) -> int:
    return found[1]


def _common_held(owner: SlotOwner, item: Generation) -> int:
    """Number of tokens that an owner's slot holds and that another prompt begins with."""
    prefilled = owner.generation.prefill_ids[: owner.generation.prefilled]
    common = common_prefix(prefilled, item.prefill_ids)
    if common == owner.generation.prefill_tokens:
        common += common_prefix(_held_generated(owner), item.prefill_ids[common:])
    return common


def _held_ids(owner: SlotOwner) -> IntArray:
    """Token ids that a slot holds for later prompts."""
    generation, number = owner
    if number:
        return np.empty(0, np.int64)
    return np.concatenate([generation.prefill_ids[: generation.prefilled], _held_generated(owner)])


def _held_generated(owner: SlotOwner) -> IntArray:
    """Token ids that a slot holds for later prompts, of those generated since prefill; none of a beam search, whose
    beams change slots.
    """
    generation = owner.generation
    beams = isinstance(generation.method, BeamGroup)
    return np.array([] if beams else generation.tokens[generation.recomputed : -1], np.int64)
