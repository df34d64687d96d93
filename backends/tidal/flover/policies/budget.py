"""The budget of keys and values: which generations fit into it at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidal.flover.policies.pages import SlotPages
from tidal.flover.policies.types import Item, Schedulable


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Memory for keys and values that all slots share.

    Attributes:
        size: Budget in bytes.
        pages: Memory of a slot by the number of its tokens.
        slots: Number of slots.
        holes: Whether decode steps write a token to slots that are free.
    """

    size: int
    pages: SlotPages
    slots: int
    holes: bool = False

    def fits(self, items: Iterable[Schedulable]) -> bool:
        """Whether the keys and values of generations with slots fit, those of their next decode step included."""
        return self._fit((item.slots, item.next_tokens) for item in items)

    def fits_growing(self, items: Iterable[Schedulable]) -> bool:
        """Whether they still fit once each sequence has grown by a page: otherwise the last one admitted would be
        preempted at once.
        """
        block = max(self.pages.covered(1), 1)
        return self._fit((item.slots, min(item.most_tokens, item.next_tokens + block)) for item in items)

    def fits_drafts(self, items: Iterable[Item], drafts: Mapping[Item, Sequence[int]]) -> bool:
        """Whether they fit with the drafted tokens of some of them."""
        return self._fit((item.slots, item.next_tokens + len(drafts.get(item, ()))) for item in items)

    def fits_alone(self, slots: int, tokens: int) -> bool:
        """Whether a generation fits without others.

        Args:
            slots: Number of its slots.
            tokens: Largest number of tokens of each.
        """
        return self._fit([(slots, tokens)])

    def _fit(self, sequences: Iterable[tuple[int, int]]) -> bool:
        free, size = self.slots, 0
        for slots, tokens in sequences:
            free -= slots
            size += slots * self.pages.bytes(tokens)
        return size + (free * self.pages.bytes(1) if self.holes else 0) <= self.size
