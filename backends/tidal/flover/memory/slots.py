"""Slot allocation, and the shuffle that keeps running slots contiguous (Flover §V-C, §V-D).

A slot holds one sequence in every tensor of the key-value cache. It is free, allocated (its prompt is prefilled) or
running. A decode step covers one window, from the first running slot to the last. Slots in between that do not run are
computed for nothing, so a shuffle moves the running slots together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidal.errors import Internal

Owner = TypeVar("Owner", bound=Hashable)


@dataclass(frozen=True, slots=True)
class SlotMove:
    """Move of a sequence to another slot, in all tensors.

    Attributes:
        source: Slot of the sequence.
        target: Slot to move it to.
        exchange: Whether `target` holds something too, which moves to `source`.
    """

    source: int
    target: int
    exchange: bool = False


@dataclass(frozen=True, slots=True)
class SlotCopy:
    """Copy of some tokens of one slot to the same positions of another.

    Attributes:
        source: Slot to read.
        target: Slot to write.
        begin: First position.
        end: Position after the last.
    """

    source: int
    target: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Window:
    """The slots from `begin` up to, not including, `end`; empty if these are equal."""

    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """Moves, in any order, after which the running slots are exactly `window`."""

    moves: tuple[SlotMove, ...]
    window: Window


def shuffle(running: Sequence[int], allocated: Sequence[int] | None = None) -> ShufflePlan:
    """Plan the cheapest moves that make the running slots contiguous (Flover §V-D, Algorithm 3), in O(slots).

    Among all windows of as many slots as are running, take the one that keeps the highest cost in place; running slots
    outside of it move into its holes. If every cost is 1, no plan has fewer moves. Among equally cheap windows the
    first is taken.

    This differs from the printed algorithm in three points:

    - The printed one sums window costs from the second window on and never considers the first. For 1,1,0 it gives
      offset 1 and one move where none is needed; if all slots run, it considers no window at all. Here the sum begins
      with the first window.
    - The printed one does not define what is copied where. Here the running slots outside of the window go, in order,
      into its holes.
    - The printed one has no slots whose prompt is being prefilled. Here such a slot may stay outside of the window, or
      exchange places with a running one at the cost of both.

    Args:
        running: Cost of moving each slot, in tokens or any other unit; 0 if it does not run.
        allocated: The same for slots that are allocated but do not run; 0 elsewhere. No slot is in both.
    """
    others = allocated if allocated is not None else [0] * len(running)
    size = sum(cost > 0 for cost in running)  # non_zero
    if size == 0:
        return ShufflePlan((), Window(0, 0))
    kept = sum(running[:size])  # window_cost
    displaced = sum(others[:size])
    begin, least = 0, displaced - kept  # mem_offset, min_cost less total_cost
    for offset in range(1, len(running) - size + 1):
        kept += running[offset + size - 1] - running[offset - 1]
        displaced += others[offset + size - 1] - others[offset - 1]
        if displaced - kept < least:
            begin, least = offset, displaced - kept
    window = Window(begin, begin + size)
    outside = (slot for slot, cost in enumerate(running) if cost > 0 and not begin <= slot < window.end)
    holes = (slot for slot in range(begin, window.end) if running[slot] == 0)
    moves = tuple(SlotMove(source, hole, others[hole] > 0) for source, hole in zip(outside, holes, strict=True))
    return ShufflePlan(moves, window)


class SlotTable(Generic[Owner]):
    """The owner of every slot. Owners keep their identity while their slots are moved.

    An owner goes from `allocate` over `activate` to `free`; `free` may come at any time after `allocate`.

    Args:
        count: Number of slots.
    """

    def __init__(self, count: int) -> None:
        self._owners: list[Owner | None] = [None] * count
        self._slots: dict[Owner, int] = {}
        self._running: set[Owner] = set()
        self._window: Window | None = None  # None: the running slots have changed

    @property
    def count(self) -> int:
        """Number of slots."""
        return len(self._owners)

    @property
    def free_count(self) -> int:
        """Number of free slots."""
        return len(self._owners) - len(self._slots)

    @property
    def free_slots(self) -> list[int]:
        """Free slots."""
        return [slot for slot, owner in enumerate(self._owners) if owner is None]

    @property
    def running(self) -> int:
        """Number of running slots."""
        return len(self._running)

    @property
    def window(self) -> Window:
        """Slots of a decode step: from the first running one to the last, holes included."""
        if self._window is None:
            slots = [self._slots[owner] for owner in self._running]
            self._window = Window(min(slots), max(slots) + 1) if slots else Window(0, 0)
        return self._window

    @property
    def contiguous(self) -> bool:
        """Whether no slot between two running ones does not run: `compact` then has no moves."""
        return len(self.window) == len(self._running)

    def slot(self, owner: Owner) -> int:
        """Current slot of an owner; the next `compact` may change it."""
        return self._slots[owner]

    def rows(self) -> list[Owner | None]:
        """Owner of every running slot of the window, in order; None for a hole."""
        window = self.window
        owners = self._owners[window.begin : window.end]
        if self.contiguous:
            return owners
        return [owner if owner in self._running else None for owner in owners]

    def allocate(self, owner: Owner, choose: Callable[[Mapping[int, int]], int] | None = None) -> int:
        """Allocate a free slot and return it.

        Args:
            owner: Owner of the slot.
            choose: Choice among the free slots, from the distance to the window by slot; None: the nearest one, so that
                the owner can run without a move if possible.

        Raises:
            Internal: No slot is free, or the owner has one.
        """
        if owner in self._slots or not self.free_count:
            raise Internal(
                f"cannot allocate a slot for {owner!r}: {self.free_count} of {self.count} are free"
                f"{', and it has one' if owner in self._slots else ''}"
            )
        window = self.window

        def distance(slot: int) -> int:
            return slot - window.end if slot >= window.end else window.begin - 1 - slot

        free = {slot: distance(slot) for slot, holder in enumerate(self._owners) if holder is None}
        slot = min(free, key=free.__getitem__) if choose is None else choose(free)
        self._owners[slot] = owner
        self._slots[owner] = slot
        return slot

    def activate(self, owner: Owner) -> None:
        """Make an owner's slot a running one.

        Raises:
            Internal: The owner has no slot.
        """
        if owner not in self._slots:
            raise Internal(f"cannot run {owner!r}: it has no slot")
        self._running.add(owner)
        self._window = None

    def free(self, owner: Owner) -> None:
        """Free an owner's slot in any state."""
        self._owners[self._slots.pop(owner)] = None
        self._running.discard(owner)
        self._window = None

    def compact(
        self, tokens: Mapping[Owner, int] | None = None, kept: Mapping[int, int] | None = None
    ) -> tuple[SlotMove, ...]:
        """Make the running slots contiguous at the least cost, and return the moves to carry out in memory.

        Args:
            tokens: Number of tokens held by each owner, which is the cost of a move; None: every move costs the same.
            kept: Number of tokens by free slot whose contents are exchanged rather than overwritten.
        """
        running, others = [0] * self.count, [0] * self.count
        for slot, owner in enumerate(self._owners):
            if owner is not None:
                costs = running if owner in self._running else others
                costs[slot] = 1 if tokens is None else max(1, tokens[owner])
        for slot, held in (kept or {}).items():
            others[slot] = held
        plan = shuffle(running, others)
        self.apply(plan.moves)
        return plan.moves

    def apply(self, moves: Iterable[SlotMove]) -> None:
        """Record moves that are carried out in memory.

        Raises:
            Internal: A move has an empty source, or would overwrite a sequence.
        """
        self._window = None
        for move in moves:
            moved, other = self._owners[move.source], self._owners[move.target]
            if moved is None or (other is not None and not move.exchange):
                raise Internal(f"invalid {move}: the source slot holds {moved!r}, the target slot {other!r}")
            self._owners[move.source], self._owners[move.target] = other, moved
            self._slots[moved] = move.target
            if other is not None:
                self._slots[other] = move.source

    def check(self) -> None:
        """Check the integrity of the table; for idle moments.

        Raises:
            Internal: The table contradicts itself.
        """
        slots = {owner: slot for slot, owner in enumerate(self._owners) if owner is not None}
        if slots != self._slots or not self._running <= slots.keys():
            raise Internal(f"inconsistent slot table: {self._owners}, {self._slots}, running {self._running}")
