"""Tokens whose keys and values free slots still hold, until the slots are used again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidal.flover.memory.slots import SlotMove
from tidal.flover.policies.prefixes import LEAST_REUSED, IntArray, common_prefix, start_of


@dataclass(frozen=True, slots=True)
class HeldTokens:
    """Tokens that a free slot holds.

    Attributes:
        ids: Token ids, [tokens] int64, at least one.
        start: Their start, see `start_of`.
        task: Reference to the task of the sequence, which may be unloaded; None for the base model.
    """

    ids: IntArray
    start: bytes
    task: weakref.ref[object] | None

    def common(self, ids: IntArray, start: bytes, task: object | None) -> int:
        """Number of tokens that a prompt of a task begins with; 0 for another task, and for too few of many to reuse.

        Args:
            ids: Token ids of the prompt, [tokens] int64.
            start: Their start, see `start_of`: most slots hold other tokens, and need no comparison of all.
            task: Task of the prompt; None for the base model.
        """
        if start != self.start and len(self.ids) >= LEAST_REUSED:
            return 0
        own = None if self.task is None else self.task()
        if own is not task or (task is None and self.task is not None):
            return 0
        return common_prefix(self.ids, ids)


class SlotContents:
    """What free slots hold, and when each slot was last used.

    Args:
        count: Number of slots.
    """

    def __init__(self, count: int) -> None:
        self._held: list[HeldTokens | None] = [None] * count
        self._used = [0] * count
        self._clock = 0

    def of(self, slot: int) -> HeldTokens | None:
        """Tokens that a free slot holds; None if there are none."""
        return self._held[slot]

    def last_used(self, slot: int) -> int:
        """Time of a slot's last use, in uses of all slots; 0 if it is empty."""
        return self._used[slot]

    def tokens(self) -> dict[int, int]:
        """Number of tokens by free slot that holds some."""
        return {slot: len(held.ids) for slot, held in enumerate(self._held) if held is not None}

    def starting_with(self, start: bytes) -> list[int]:
        """Free slots whose tokens have a start, see `start_of`: no others share `LEAST_REUSED` tokens with it.

        Args:
            start: Start of at least `LEAST_REUSED` tokens.
        """
        return [slot for slot, held in enumerate(self._held) if held is not None and held.start == start]

    def keep(self, slot: int, ids: IntArray, task: object | None) -> None:
        """Record what a slot holds that becomes free; nothing if `ids` is empty."""
        reference = None if task is None else weakref.ref(task)
        self._held[slot] = HeldTokens(ids, start_of(ids), reference) if len(ids) else None
        self.touch(slot)

    def touch(self, slot: int) -> None:
        """Record that the tokens of a slot were used."""
        self._clock += 1
        self._used[slot] = self._clock if self._held[slot] is not None else 0

    def shorten(self, slot: int, tokens: int) -> None:
        """Record that a free slot holds only its first tokens any more, if it held more."""
        held = self._held[slot]
        if held is not None and tokens < len(held.ids):
            if tokens < LEAST_REUSED:
                self.forget([slot])
            else:
                self._held[slot] = replace(held, ids=held.ids[:tokens])

    def forget(self, slots: Iterable[int]) -> None:
        """Record that slots hold nothing for later prompts."""
        for slot in slots:
            self._held[slot], self._used[slot] = None, 0

    def moved(self, moves: Iterable[SlotMove]) -> None:
        """Record moves of slots: an exchange keeps what both hold, another move overwrites its target."""
        for move in moves:
            if move.exchange:
                source, target = move.source, move.target
                self._held[source], self._held[target] = self._held[target], self._held[source]
                self._used[source], self._used[target] = self._used[target], self._used[source]
            else:
                self.forget([move.source, move.target])
