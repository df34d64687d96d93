"""Memory that the operating system has committed to slots, and which of it to release when the budget is used up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidal.flover.policies.pages import SlotPages

# At least 1 / 4 of what a free slot holds is released at once: a release takes a call for each run of the slot.
_LEAST_SHARE = 4


@dataclass(frozen=True, slots=True)
class SlotUse:
    """Use of the slots.

    Attributes:
        held: Number of tokens by slot: of its sequence, or for later prompts.
        free: Free slots, the least recently used first.
    """

    held: Sequence[int]
    free: Sequence[int]


class CommittedMemory:
    """Tokens up to which each slot was written since its memory was last released, and the pages of these tokens.

    Args:
        count: Number of slots.
        pages: Memory of a slot by the number of its tokens.
        budget: Most bytes of all slots.

    Attributes:
        budget: Most bytes of all slots.
    """

    def __init__(self, count: int, pages: SlotPages, budget: int) -> None:
        self.budget = budget
        self._pages = pages
        self._written = [0] * count
        self._covered = [0] * count  # tokens that fit into the pages
        self._cleared = [0] * count  # bytes of slots without tokens
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Committed bytes of all slots."""
        return self._bytes

    @property
    def written(self) -> Sequence[int]:
        """Number of tokens by slot that may have been written."""
        return self._written

    def fits(self, writes: Mapping[int, int]) -> bool:
        """Whether the budget holds after a pass without a release.

        Args:
            writes: Number of tokens that slots hold after the pass.
        """
        return not any(tokens > self._covered[slot] for slot, tokens in writes.items()) or self._excess(writes) <= 0

    def write(self, writes: Mapping[int, int]) -> None:
        """Record the tokens that a pass writes.

        Args:
            writes: Number of tokens that slots hold after the pass.
        """
        for slot, tokens in writes.items():
            if tokens > self._covered[slot]:
                self._set(slot, tokens)
            elif tokens > self._written[slot]:
                self._written[slot] = tokens

    def uncleared(self, slot: int) -> int:
        """Return the bytes that the operating system clears all at once for the first token of a slot."""
        if not self._pages.at_once or self._written[slot]:
            return 0
        return self._pages.bytes(1) - self._cleared[slot]

    def clear(self, slot: int, most: int) -> tuple[int, int]:
        """Choose and record the next part of a slot's memory to clear.

        Args:
            slot: Slot with memory to clear.
            most: Most bytes to clear.

        Returns:
            First byte of the slot to clear, and the byte after the last.
        """
        begin = self._cleared[slot]
        self._cleared[slot] = end = begin + min(most, self.uncleared(slot))
        self._bytes += end - begin
        return begin, end

    def release(self, writes: Mapping[int, int], use: SlotUse, pinned: Collection[int] = ()) -> dict[int, int]:
        """Choose and record what to release before a pass, so that the budget holds after it, if that is possible.

        First go tokens that no sequence and no later prompt has, then those for later prompts, from the end of the
        least recently used slot on.

        Args:
            writes: Number of tokens that slots hold after the pass.
            use: Use of the slots.
            pinned: Free slots that the pass reads.

        Returns:
            Number of tokens to keep, by slot.
        """
        kept: dict[int, int] = {}
        for slot, held in enumerate(use.held):
            needed = max(held, writes.get(slot, 0))
            if self._excess(writes) > 0 and self._covered[slot] > self._pages.covered(needed):
                self._set(slot, needed)
                kept[slot] = needed
        for slot in use.free:
            excess = self._excess(writes)
            if excess > 0 and self._written[slot] and slot not in writes and slot not in pinned:
                size = self._pages.bytes(self._written[slot])
                left = self._pages.within(size - max(excess, size // _LEAST_SHARE), self._written[slot])
                self._set(slot, left)
                kept[slot] = left
        return kept

    def released(self, slots: Iterable[int]) -> None:
        """Record that all memory of slots was released."""
        for slot in slots:
            self._set(slot, 0)

    def move(self, moves: Iterable[tuple[int, int, bool]], held: Sequence[int]) -> bool:
        """Record moves of slots; return whether to release what the moved slots do not hold afterwards.

        Args:
            moves: Source and target of each move in their order, and whether it exchanges what they hold.
            held: Number of tokens held by each slot before them.
        """
        plain, exact, now = list(self._written), list(self._written), list(held)
        for source, target, exchange in moves:
            moved, exchanged = now[source], now[target] if exchange else 0
            for slot, tokens in ((source, exchanged), (target, moved)):
                now[slot] = exact[slot] = tokens
                plain[slot] = max(plain[slot], tokens)
        fits = sum(map(self._pages.bytes, plain)) <= self.budget
        for slot, tokens in enumerate(plain if fits else exact):
            if tokens != self._written[slot]:
                self._set(slot, tokens)
        return not fits

    def _excess(self, writes: Mapping[int, int]) -> int:
        """Bytes by which a pass would exceed the budget."""
        growth = sum(
            self._pages.bytes(tokens) - self._of(slot)
            for slot, tokens in writes.items()
            if tokens > self._covered[slot]
        )
        return self._bytes + growth - self.budget

    def _set(self, slot: int, tokens: int) -> None:
        self._bytes += self._pages.bytes(tokens) - self._of(slot)
        self._written[slot], self._covered[slot], self._cleared[slot] = tokens, self._pages.covered(tokens), 0

    def _of(self, slot: int) -> int:
        """Committed bytes of a slot."""
        return self._pages.bytes(self._written[slot]) or self._cleared[slot]
