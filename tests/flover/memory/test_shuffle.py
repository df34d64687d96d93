"""Slot shuffling (Flover, Algorithm 3) against all possible windows, and the slot table against a simple model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidal.errors import Internal
from tidal.flover.memory.contents import SlotContents
from tidal.flover.memory.slots import ShufflePlan, SlotMove, SlotTable, Window, shuffle


def after_moves(holders: Sequence[str], plan: ShufflePlan) -> list[str]:
    """Return the contents of the slots after a plan's moves; `.` is empty."""
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
def test_plans_have_the_fewest_moves(length: int) -> None:
    for array in itertools.product((0, 1), repeat=length):
        plan = shuffle(array)
        assert len(plan.moves) == fewest_moves(array), array
        after = after_moves([".#"[each] for each in array], plan)
        window = range(plan.window.begin, plan.window.end)
        assert [slot for slot, each in enumerate(after) if each == "#"] == list(window), array


def test_the_first_of_equal_windows_is_chosen() -> None:
    assert shuffle([1, 1, 0]) == ShufflePlan((), Window(0, 2))
    assert shuffle([1, 1]) == ShufflePlan((), Window(0, 2))
    assert shuffle([1, 0, 0, 1, 1]) == ShufflePlan((SlotMove(0, 2),), Window(2, 5))
    assert shuffle([0, 0]) == ShufflePlan((), Window(0, 0))


def test_the_sequence_with_more_tokens_stays() -> None:
    assert shuffle([500, 0, 20]).moves == (SlotMove(2, 1),)
    assert shuffle([20, 0, 500]).moves == (SlotMove(0, 1),)


def test_an_allocated_slot_is_exchanged_only_if_that_is_cheaper() -> None:
    assert shuffle([1, 0, 1, 0], [0, 1, 0, 0]).moves == (SlotMove(0, 3),)
    assert shuffle([1, 0, 1], [0, 1, 0]).moves == (SlotMove(2, 1, exchange=True),)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(".#x"), st.integers(1, 9)), max_size=8))
def test_costs_are_minimal_with_allocated_slots(slots: list[tuple[str, int]]) -> None:
    running = [cost if kind == "#" else 0 for kind, cost in slots]
    allocated = [cost if kind == "x" else 0 for kind, cost in slots]
    plan = shuffle(running, allocated)
    size = sum(kind == "#" for kind, _ in slots)
    after = after_moves([kind for kind, _ in slots], plan)
    assert after[plan.window.begin : plan.window.end] == ["#"] * size
    assert sorted(after) == sorted(kind for kind, _ in slots)
    cost = sum(running[move.source] + allocated[move.target] for move in plan.moves)
    assert cost == min(
        sum(running[:begin]) + sum(running[begin + size :]) + sum(allocated[begin : begin + size])
        for begin in range(len(slots) - size + 1)
    )


class SlotTableMachine(RuleBasedStateMachine):
    """Random calls, compared with a list of what each slot contains."""

    @initialize(count=st.integers(1, 6))
    def begin(self, count: int) -> None:
        self.slots = SlotTable[int](count)
        self.memory: list[int | None] = [None] * count
        self.running: set[int] = set()
        self.next = 0

    @precondition(lambda self: self.slots.free_count)
    @rule()
    def allocate(self) -> None:
        slot = self.slots.allocate(self.next)
        assert self.memory[slot] is None
        self.memory[slot] = self.next
        self.next += 1

    @precondition(lambda self: set(self.memory) - self.running - {None})
    @rule(data=st.data())
    def activate(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted({key for key in self.memory if key is not None} - self.running)))
        self.slots.activate(key)
        self.running.add(key)

    @precondition(lambda self: any(key is not None for key in self.memory))
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(key for key in self.memory if key is not None)))
        self.slots.free(key)
        self.memory[self.memory.index(key)] = None
        self.running.discard(key)

    @rule(weighted=st.booleans())
    def compact(self, weighted: bool) -> None:
        held = {key: key % 5 for key in self.memory if key is not None}
        for move in self.slots.compact(held if weighted else None):
            memory = self.memory
            assert (memory[move.target] is not None) is move.exchange
            memory[move.source], memory[move.target] = memory[move.target], memory[move.source]
        assert len(self.slots.window) == len(self.running)
        assert not self.slots.compact(held)

    @invariant()
    def the_table_matches_memory(self) -> None:
        self.slots.check()
        held = {key: slot for slot, key in enumerate(self.memory) if key is not None}
        assert {key: self.slots.slot(key) for key in held} == held
        assert self.slots.free_count == self.slots.count - len(held)
        assert self.slots.running == len(self.running)
        window = self.slots.window
        assert self.slots.rows() == [
            key if key in self.running else None for key in self.memory[window.begin : window.end]
        ]
        assert {key for key in self.slots.rows() if key is not None} == self.running


SlotTableMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestSlotTable = SlotTableMachine.TestCase


def test_new_slots_are_next_to_the_window() -> None:
    slots = SlotTable[str](6)
    for key in "abc":
        slots.allocate(key)
        slots.activate(key)
    assert slots.allocate("d") == 3
    slots.free("a")
    assert slots.compact() == ()
    assert slots.allocate("e") == 0
    slots.activate("e")
    assert slots.window == Window(0, 3)


@given(st.lists(st.sampled_from(["free", "kept", "allocated", "running"]), min_size=1, max_size=10))
def test_what_free_slots_keep_is_exchanged(states: list[str]) -> None:
    slots, contents = SlotTable[int](len(states)), SlotContents(len(states))
    memory: list[tuple[str, int] | None] = [None] * len(states)
    for slot, state in enumerate(states):
        if state in ("allocated", "running"):
            slots.allocate(slot, lambda _free, slot=slot: slot)  # type: ignore[misc]
            memory[slot] = ("owned", slot)
        if state == "running":
            slots.activate(slot)
        if state == "kept":
            contents.keep(slot, np.arange(slot + 1), None)
            memory[slot] = ("kept", slot)
    before = [each for each in memory if each is not None]
    moves = slots.compact(None, contents.tokens())
    contents.moved(moves)
    for move in moves:
        assert move.exchange is (memory[move.target] is not None)
        memory[move.source], memory[move.target] = memory[move.target], memory[move.source]
    assert sorted(each for each in memory if each is not None) == sorted(before)
    for slot, each in enumerate(memory):
        held = contents.of(slot)
        assert (held is not None) is (each is not None and each[0] == "kept")
        if each is not None and held is not None:
            assert len(held.ids) == each[1] + 1
        if each is not None and each[0] == "owned":
            assert slots.slot(each[1]) == slot
    assert not slots.compact(None, contents.tokens())


def test_invalid_calls_raise() -> None:
    slots = SlotTable[str](1)
    slots.allocate("a")
    with pytest.raises(Internal, match="cannot allocate a slot for 'b'"):
        slots.allocate("b")
    with pytest.raises(Internal, match="cannot run"):
        slots.activate("b")
    with pytest.raises(Internal, match="invalid SlotMove"):
        slots.apply([SlotMove(0, 0)])
