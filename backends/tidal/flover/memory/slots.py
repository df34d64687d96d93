"""Which slots are taken, and how those of running generations are kept together (Flover §V-C, §V-D).

A slot is one sequence's place in every buffer. It is free, reserved (its prompt is being read) or running. A decoding
step covers one window of slots from the first running one to the last, so what lies between and does not run costs
time and yields nothing: a shuffle moves running slots together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidal.errors import Internal

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Move:
    """Copy slot `source` to slot `target`, of all tensors; `exchange`: and what was in `target` to `source`."""

    source: int
    target: int
    exchange: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the tokens at `begin` up to, not including, `end` of slot `source` to the same places of slot `target`."""

    source: int
    target: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Window:
    """Slots from `begin` up to, not including, `end`; empty where they are equal."""

    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves, in any order, after which the running slots are exactly `window`."""

    moves: tuple[Move, ...]
    window: Window


def shuffle(running: Sequence[int], reserved: Sequence[int] | None = None) -> Plan:
    """The cheapest way to bring all running slots together (Flover §V-D, Algorithm 3), in O(slots).

    Of all windows of as many slots as run, the one that saves the most: what runs outside of it moves into its holes.
    If every cost is 1, no plan has fewer moves. Of equally cheap windows the first is taken.

    As it is printed, the algorithm differs in three points:

    - It sums window costs up from the second window on and never looks at the first. For 1,1,0 that gives offset 1 and
      a move, where none is needed; if all slots run it looks at no window at all. Here the sum begins with the first.
    - It is silent on what to copy where. Here the running slots outside of the window go, in order, into its holes.
    - It has no slots whose prompt is being read. Here such a slot may stay outside of the window, or exchange places
      with a running one, which costs what both hold.

    Args:
        running: for every slot what a move of it costs, in tokens or any other unit; 0 where it does not run.
        reserved: the same for slots that are taken and do not run; 0 elsewhere. No slot is both.
    """
    taken = reserved if reserved is not None else [0] * len(running)
    size = sum(cost > 0 for cost in running)  # non_zero
    if size == 0:
        return Plan((), Window(0, 0))
    kept = sum(running[:size])  # window_cost
    displaced = sum(taken[:size])
    begin, least = 0, displaced - kept  # mem_offset, min_cost less total_cost
    for offset in range(1, len(running) - size + 1):
        kept += running[offset + size - 1] - running[offset - 1]
        displaced += taken[offset + size - 1] - taken[offset - 1]
        if displaced - kept < least:
            begin, least = offset, displaced - kept
    window = Window(begin, begin + size)
    outside = (slot for slot, cost in enumerate(running) if cost > 0 and not begin <= slot < window.end)
    holes = (slot for slot in range(begin, window.end) if running[slot] == 0)
    moves = tuple(Move(source, hole, taken[hole] > 0) for source, hole in zip(outside, holes, strict=True))
    return Plan(moves, window)


class Slots(Generic[Key]):
    """Who has which slot. Callers name sequences by keys of their own, which stay while slots are moved.

    A sequence goes from `reserve` over `join` to `release`; `release` may come at any time after `reserve`.

    Args:
        count: of slots.
    """

    def __init__(self, count: int) -> None:
        self._keys: list[Key | None] = [None] * count
        self._slots: dict[Key, int] = {}
        self._running: set[Key] = set()

    @property
    def count(self) -> int:
        """Slots in all."""
        return len(self._keys)

    @property
    def free(self) -> int:
        """Slots that nobody has."""
        return len(self._keys) - len(self._slots)

    @property
    def running(self) -> int:
        """Sequences that have joined."""
        return len(self._running)

    @property
    def window(self) -> Window:
        """From the first running slot to the last, holes included; what a step covers."""
        slots = [self._slots[key] for key in self._running]
        return Window(min(slots), max(slots) + 1) if slots else Window(0, 0)

    def slot(self, key: Key) -> int:
        """Where a sequence is now; it may be elsewhere after the next `settle`."""
        return self._slots[key]

    def rows(self) -> list[Key | None]:
        """For every slot of the window who runs there; None for a hole, also if it is reserved."""
        window = self.window
        found = self._keys[window.begin : window.end]
        return [key if key in self._running else None for key in found]

    def reserve(self, key: Key) -> int:
        """Take the free slot that is nearest to the window, so that joining needs no move if it can be had.

        Raises:
            Internal: no slot is free, or the key has one.
        """
        if key in self._slots or not self.free:
            raise Internal(f"no slot for {key!r}: {self.free} of {self.count} are free, or it has one")
        window = self.window

        def distance(slot: int) -> int:
            return slot - window.end if slot >= window.end else window.begin - 1 - slot

        slot = min((slot for slot, holder in enumerate(self._keys) if holder is None), key=distance)
        self._keys[slot] = key
        self._slots[key] = slot
        return slot

    def join(self, key: Key) -> None:
        """Let a sequence with a slot run."""
        if key not in self._slots:
            raise Internal(f"{key!r} cannot run: it has no slot")
        self._running.add(key)

    def release(self, key: Key) -> None:
        """Free a sequence's slot, whatever it was doing."""
        self._keys[self._slots.pop(key)] = None
        self._running.discard(key)

    def settle(self, tokens: Mapping[Key, int] | None = None) -> tuple[Move, ...]:
        """Bring running slots together at the least cost, and tell what has to be copied for that.

        Args:
            tokens: held by each sequence, which a move costs; without it every move costs the same.
        """

        def cost(key: Key | None, running: bool) -> int:
            if key is None or (key in self._running) is not running:
                return 0
            return 1 if tokens is None else max(1, tokens[key])

        plan = shuffle([cost(key, True) for key in self._keys], [cost(key, False) for key in self._keys])
        self.apply(plan.moves)
        return plan.moves

    def apply(self, moves: Iterable[Move]) -> None:
        """Enter moves that are made elsewhere too.

        Raises:
            Internal: a move has an empty source, or would overwrite a sequence.
        """
        for move in moves:
            moved, other = self._keys[move.source], self._keys[move.target]
            if moved is None or (other is not None) is not move.exchange:
                raise Internal(f"{move} does not fit: source holds {moved!r}, target {other!r}")
            self._keys[move.source], self._keys[move.target] = other, moved
            self._slots[moved] = move.target
            if other is not None:
                self._slots[other] = move.source

    def check(self) -> None:
        """Hold the table to itself; for idle moments.

        Raises:
            Internal: it contradicts itself, which is a defect here.
        """
        found = {key: slot for slot, key in enumerate(self._keys) if key is not None}
        if found != self._slots or not self._running <= found.keys():
            raise Internal(f"slots contradict themselves: {self._keys}, {self._slots}, running {self._running}")
