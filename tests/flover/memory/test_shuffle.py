"""Algorithm 3 against all windows there are, and the table of slots against a simple model of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidal.errors import Internal
from tidal.flover.memory.slots import Move, Plan, Slots, Window, shuffle


def carried_out(holders: Sequence[str], plan: Plan) -> list[str]:
    """Slots after the moves, as memory would have them; `.` is empty."""
    memory = list(holders)
    for move in plan.moves:
        assert memory[move.source] != "."
        assert (memory[move.target] != ".") is move.exchange
        moved, other = memory[move.source], memory[move.target]
        memory[move.target], memory[move.source] = moved, other if move.exchange else "."
    return memory


def fewest_moves(array: Sequence[int]) -> int:
    size = sum(array)
    return min(size - sum(array[begin : begin + size]) for begin in range(len(array) - size + 1))


@pytest.mark.parametrize("length", range(13))
def test_no_plan_has_fewer_moves(length: int) -> None:
    for array in itertools.product((0, 1), repeat=length):
        plan = shuffle(array)
        assert len(plan.moves) == fewest_moves(array), array
        after = carried_out([".#"[each] for each in array], plan)
        window = range(plan.window.begin, plan.window.end)
        assert [slot for slot, each in enumerate(after) if each == "#"] == list(window), array


def test_the_first_window_counts() -> None:
    assert shuffle([1, 1, 0]) == Plan((), Window(0, 2))
    assert shuffle([1, 1]) == Plan((), Window(0, 2))
    assert shuffle([1, 0, 0, 1, 1]) == Plan((Move(0, 2),), Window(2, 5))
    assert shuffle([0, 0]) == Plan((), Window(0, 0))


def test_the_dearer_sequence_stays() -> None:
    assert shuffle([500, 0, 20]).moves == (Move(2, 1),)
    assert shuffle([20, 0, 500]).moves == (Move(0, 1),)


def test_a_prompt_that_is_being_read_changes_places_only_where_that_is_cheaper() -> None:
    assert shuffle([1, 0, 1, 0], [0, 1, 0, 0]).moves == (Move(0, 3),)
    assert shuffle([1, 0, 1], [0, 1, 0]).moves == (Move(2, 1, exchange=True),)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(".#x"), st.integers(1, 9)), max_size=8))
def test_costs_are_least_with_reserved_slots_too(slots: list[tuple[str, int]]) -> None:
    running = [cost if kind == "#" else 0 for kind, cost in slots]
    reserved = [cost if kind == "x" else 0 for kind, cost in slots]
    plan = shuffle(running, reserved)
    size = sum(kind == "#" for kind, _ in slots)
    after = carried_out([kind for kind, _ in slots], plan)
    assert after[plan.window.begin : plan.window.end] == ["#"] * size
    assert sorted(after) == sorted(kind for kind, _ in slots)
    cost = sum(running[move.source] + reserved[move.target] for move in plan.moves)
    assert cost == min(
        sum(running[:begin]) + sum(running[begin + size :]) + sum(reserved[begin : begin + size])
        for begin in range(len(slots) - size + 1)
    )


class SlotsMachine(RuleBasedStateMachine):
    """Sequences come, join and go; beside the table stands what memory would hold after its moves."""

    @initialize(count=st.integers(1, 6))
    def begin(self, count: int) -> None:
        self.slots = Slots[int](count)
        self.memory: list[int | None] = [None] * count
        self.running: set[int] = set()
        self.next = 0

    @precondition(lambda self: self.slots.free)
    @rule()
    def reserve(self) -> None:
        slot = self.slots.reserve(self.next)
        assert self.memory[slot] is None
        self.memory[slot] = self.next
        self.next += 1

    @precondition(lambda self: set(self.memory) - self.running - {None})
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted({key for key in self.memory if key is not None} - self.running)))
        self.slots.join(key)
        self.running.add(key)

    @precondition(lambda self: any(key is not None for key in self.memory))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(key for key in self.memory if key is not None)))
        self.slots.release(key)
        self.memory[self.memory.index(key)] = None
        self.running.discard(key)

    @rule(weighted=st.booleans())
    def settle(self, weighted: bool) -> None:
        held = {key: key % 5 for key in self.memory if key is not None}
        for move in self.slots.settle(held if weighted else None):
            memory = self.memory
            assert (memory[move.target] is not None) is move.exchange
            memory[move.source], memory[move.target] = memory[move.target], memory[move.source]
        assert len(self.slots.window) == len(self.running)
        assert not self.slots.settle(held)

    @invariant()
    def told_as_it_is(self) -> None:
        self.slots.check()
        held = {key: slot for slot, key in enumerate(self.memory) if key is not None}
        assert {key: self.slots.slot(key) for key in held} == held
        assert self.slots.free == self.slots.count - len(held)
        assert self.slots.running == len(self.running)
        window = self.slots.window
        assert self.slots.rows() == [
            key if key in self.running else None for key in self.memory[window.begin : window.end]
        ]
        assert {key for key in self.slots.rows() if key is not None} == self.running


SlotsMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestSlots = SlotsMachine.TestCase


def test_a_newcomer_lies_beside_the_window() -> None:
    slots = Slots[str](6)
    for key in "abc":
        slots.reserve(key)
        slots.join(key)
    assert slots.reserve("d") == 3
    slots.release("a")
    assert slots.settle() == ()
    assert slots.reserve("e") == 0
    slots.join("e")
    assert slots.window == Window(0, 3)


def test_what_cannot_be_is_refused() -> None:
    slots = Slots[str](1)
    slots.reserve("a")
    with pytest.raises(Internal, match="no slot for 'b'"):
        slots.reserve("b")
    with pytest.raises(Internal, match="cannot run"):
        slots.join("b")
    with pytest.raises(Internal, match="does not fit"):
        slots.apply([Move(0, 0)])
