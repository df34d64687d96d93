"""The slots of a draft model: the tokens that each holds, and the generation that it follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidal.flover.generation import Generation
from tidal.flover.memory.slots import SlotCopy
from tidal.flover.policies.committed import CommittedMemory, SlotUse
from tidal.flover.policies.prefixes import LEAST_REUSED


@dataclass(slots=True)
class _Slot:
    """Contents of a slot.

    Attributes:
        ids: Token ids whose keys and values it holds.
        confirmed: Number of these that its generation's sequence is known to begin with.
        used: Time of its last use, in uses of all slots.
    """

    ids: list[int] = field(default_factory=list)
    confirmed: int = 0
    used: int = 0


class DraftSlots:
    """Slots that follow running generations.

    A slot keeps its tokens, whatever becomes of its generation, and is compared with the sequence before each use. So
    nothing has to be reported to it: tokens of rejected drafts are overwritten, and a generation that was preempted, or
    a prompt that begins with another text, continues from what some slot holds. Passes of a draft model take any slots,
    so its slots need no moves.

    Args:
        count: Number of slots.
        memory: Memory committed to the slots.

    Attributes:
        memory: Memory committed to the slots.
    """

    def __init__(self, count: int, memory: CommittedMemory) -> None:
        self.memory = memory
        self._slots = [_Slot() for _ in range(count)]
        self._of: dict[Generation, int] = {}
        self._clock = 0

    def follow(self, running: Iterable[Generation]) -> None:
        """Free the slots of generations that do not run."""
        kept = set(running)
        for generation in [each for each in self._of if each not in kept]:
            self._slots[self._of.pop(generation)].confirmed = 0

    def has(self, generation: Generation) -> bool:
        """Whether a generation has a slot."""
        return generation in self._of

    def slot(self, generation: Generation) -> int:
        """Slot of a generation that has one."""
        return self._of[generation]

    def cached(self, generation: Generation) -> int:
        """Number of tokens of a generation, without its latest one, that its slot holds; 0 without a slot."""
        number = self._of.get(generation)
        if number is None:
            return 0
        slot = self._slots[number]
        following = sequence(generation, slot.confirmed, len(slot.ids))
        slot.confirmed += _common(slot.ids[slot.confirmed :], following)
        del slot.ids[slot.confirmed :]
        return min(slot.confirmed, generation.prompt_tokens + len(generation.tokens) - 1)

    def allocate(self, generation: Generation) -> SlotCopy | None:
        """Give a generation without a slot the free one that holds most of its tokens, else the least recently used.

        Returns:
            The copy that gives the slot the tokens that another one holds, if that is to be carried out.

        Raises:
            LookupError: No slot is free.
        """
        wanted = sequence(generation, 0, generation.prompt_tokens + len(generation.tokens) - 1)
        common = [_common(slot.ids, wanted) for slot in self._slots]
        used = set(self._of.values())
        free = [number for number in range(len(self._slots)) if number not in used]
        if not free:
            raise LookupError("no slot is free")
        source = max(range(len(self._slots)), key=common.__getitem__)
        if common[source] < LEAST_REUSED or source in used:
            target = min(free, key=lambda number: self._slots[number].used)
        else:
            target = source
        self._of[generation] = target
        if target == source or common[source] < LEAST_REUSED:
            return None
        self._slots[target].ids = []
        return SlotCopy(source, target, 0, common[source])

    def copied(self, copy: SlotCopy) -> None:
        """Record a copy."""
        self._slots[copy.target].ids = self._slots[copy.source].ids[: copy.end]

    def hold(self, slot: int, start: int, ids: Iterable[int]) -> None:
        """Record that a pass writes tokens to a slot from a position on, at most behind those that it holds."""
        self._clock += 1
        held = self._slots[slot]
        held.used, held.confirmed = self._clock, min(held.confirmed, start)
        held.ids[start:] = ids

    def commit(self, writes: Mapping[int, int]) -> tuple[dict[int, int], bool]:
        """Make room in the budget for a pass: memory that no generation uses is released first.

        Args:
            writes: Number of tokens that slots hold after the pass.

        Returns:
            Number of tokens to keep of slots to release in part, by slot, and whether the pass fits then.
        """
        kept: dict[int, int] = {}
        if not self.memory.fits(writes):
            used = set(self._of.values())
            free = [number for number in range(len(self._slots)) if number not in used]
            free.sort(key=lambda number: self._slots[number].used)
            kept = self.memory.release(writes, SlotUse([len(slot.ids) for slot in self._slots], free))
            for slot, tokens in kept.items():
                del self._slots[slot].ids[tokens:]
        fits = self.memory.fits(writes)
        if fits:
            self.memory.write(writes)
        return kept, fits

    def forget(self, slots: Iterable[int]) -> None:
        """Record that nothing is known of what slots hold."""
        for number in slots:
            self._slots[number].ids, self._slots[number].confirmed = [], 0


def sequence(generation: Generation, start: int, end: int) -> list[int]:
    """Token ids from an index up to another of a generation's prompt and text."""
    prompt = generation.prompt_tokens
    found: list[int] = generation.prompt_ids[start:end].tolist() if start < prompt else []
    return found + generation.tokens[max(start - prompt, 0) : max(end - prompt, 0)]


def _common(ids: list[int], others: list[int]) -> int:
    """Number of tokens that both begin with."""
    low, high = 0, min(len(ids), len(others))
    while low < high:  # slices are compared faster than tokens one by one
        middle = (low + high + 1) // 2
        low, high = (middle, high) if ids[low:middle] == others[low:middle] else (low, middle - 1)
    return low
