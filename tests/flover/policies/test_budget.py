"""The budget of keys and values: admission, preemption and releases under random arrivals, against a count of pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.flover.policies.test_scheduler import COSTS
from tidal.flover.memory.slots import SlotMove, SlotTable
from tidal.flover.policies import FloverScheduler, MemoryBudget, Schedulable
from tidal.flover.policies.committed import CommittedMemory, SlotUse
from tidal.flover.policies.pages import SlotPages, TokenRuns

PAGE, LENGTH = 4, 40
PAGES = SlotPages((TokenRuns(2, 3, 3 * PAGE), TokenRuns(1, 1, PAGE)))
BYTES = 7 * PAGE  # of a page of tokens


def pages(tokens: int) -> int:
    return -(-tokens // PAGE)


@dataclass(eq=False, slots=True)
class CountedGeneration(Schedulable):
    """A generation that counts its tokens."""

    tokens: int = 0

    @property
    def generated(self) -> int:
        return self.tokens

    @property
    def held(self) -> int:
        """Number of tokens in each of its slots while it runs, or before."""
        return self.prompt_tokens + self.tokens - 1 if self.tokens > self.recomputed else 0


@dataclass
class Simulation:
    """A service whose slots commit pages as the operating system would.

    Attributes:
        committed: Committed pages (slot, number), kept apart from the policy's own count.
        held: Tokens of free slots for later prompts.
    """

    scheduler: FloverScheduler[CountedGeneration]
    memory: CommittedMemory
    table: SlotTable[tuple[CountedGeneration, int]]
    committed: set[tuple[int, int]] = field(default_factory=set)
    held: dict[int, int] = field(default_factory=dict)
    prefilled: dict[CountedGeneration, int] = field(default_factory=dict)
    preemptions: int = 0
    ended: list[CountedGeneration] = field(default_factory=list)

    def free(self, item: CountedGeneration) -> None:
        for number in range(item.slots):
            slot = self.table.slot((item, number))
            self.held[slot] = self.tokens_of(item, number)
            self.table.free((item, number))
        self.prefilled.pop(item)

    def tokens_of(self, item: CountedGeneration, number: int) -> int:
        return item.held or (self.prefilled[item] if number == 0 else 0)

    def use(self) -> SlotUse:
        held = [self.held.get(slot, 0) for slot in range(self.table.count)]
        for item in self.prefilled:
            for number in range(item.slots):
                held[self.table.slot((item, number))] = self.tokens_of(item, number)
        return SlotUse(held, self.table.free_slots)

    def write(self, writes: Mapping[int, int]) -> None:
        if not self.memory.fits(writes):
            for slot, kept in self.memory.release(writes, self.use()).items():
                assert kept >= self.use().held[slot] or slot in self.table.free_slots
                self.committed -= {(slot, page) for page in range(pages(kept), pages(LENGTH))}
                self.held[slot] = min(kept, self.held.get(slot, 0))
            assert self.memory.fits(writes)
        self.memory.write(writes)
        self.committed |= {(slot, page) for slot, tokens in writes.items() for page in range(pages(tokens))}
        assert len(self.committed) * BYTES == self.memory.bytes <= self.memory.budget

    def move(self, moves: tuple[SlotMove, ...], use: SlotUse) -> None:
        held = list(use.held)
        for move in moves:
            held[move.source], held[move.target] = held[move.target] if move.exchange else 0, held[move.source]
            for slot in (move.source, move.target):
                self.committed |= {(slot, page) for page in range(pages(held[slot]))}
        if self.memory.move([(each.source, each.target, each.exchange) for each in moves], use.held):
            moved = {slot for move in moves for slot in (move.source, move.target)}
            self.committed -= {(slot, page) for slot in moved for page in range(pages(held[slot]), pages(LENGTH))}
        for move in moves:
            kept, other = self.held.pop(move.source, 0), self.held.pop(move.target, 0)
            self.held[move.source], self.held[move.target] = other if move.exchange else 0, kept
        assert len(self.committed) * BYTES == self.memory.bytes <= self.memory.budget

    def iterate(self) -> None:
        oldest = min(self.prefilled, key=lambda item: self.scheduler._keys[item], default=None)
        preempted = self.scheduler.preempt(self.free)
        self.preemptions += len(preempted)
        if oldest is not None and all(item.preemptible for item in self.prefilled):
            assert oldest not in preempted
        for item in self.scheduler.admit(0.0).admitted:
            self.prefilled[item] = 0
            for number in range(item.slots):
                self.held[self.table.allocate((item, number))] = 0
        for chunk in self.scheduler.prefill():
            self.write({self.table.slot((chunk.item, 0)): chunk.end})
            self.prefilled[chunk.item] = chunk.end
            if chunk.last:
                # Beams continue copies of the prompt.
                self.write({self.table.slot((chunk.item, number)): chunk.end for number in range(1, chunk.item.slots)})
                self.step_of(chunk.item)
                for number in range(chunk.item.slots):
                    if chunk.item in self.prefilled:
                        self.table.activate((chunk.item, number))
        use = self.use()
        self.move(self.table.compact(None, {slot: tokens for slot, tokens in self.held.items() if tokens}), use)
        running = [item for item in self.prefilled if item.tokens > item.recomputed]
        self.write({self.table.slot((item, number)): item.held + 1 for item in running for number in range(item.slots)})
        for item in running:
            self.step_of(item)

    def step_of(self, item: CountedGeneration) -> None:
        item.tokens += 1
        if item.tokens == item.max_tokens:
            self.ended.append(item)
            self.scheduler.remove(item)
            self.free(item)


REQUESTS = st.lists(
    st.tuples(st.integers(1, LENGTH - 2), st.integers(1, LENGTH), st.sampled_from([1, 1, 1, 2]), st.integers(0, 6)),
    min_size=1, max_size=14,
)  # fmt: skip


@given(REQUESTS, st.integers(2, 5), st.integers(0, 20))
@example([(1, 1, 1, 0)] * 3 + [(1, 3, 1, 2), (1, 3, 2, 0), (17, 2, 2, 0)], 4, 1)  # two beams of a long prompt are moved
@settings(max_examples=300)
def test_all_generations_end_within_the_budget(
    requests: list[tuple[int, int, int, int]], slots: int, more: int
) -> None:
    size = (pages(LENGTH) + more) * BYTES
    budget = MemoryBudget(size, PAGES, slots)
    scheduler = FloverScheduler[CountedGeneration](slots, COSTS, prefill_share=0.5, memory=budget)
    simulation = Simulation(scheduler, CommittedMemory(slots, PAGES, size), SlotTable(slots))
    arriving, expected = [], 0
    for number, (prompt, wanted, beams, at) in enumerate(requests):
        item = CountedGeneration(float(number), math.inf, prompt, beams, min(wanted, LENGTH - prompt))
        if budget.fits_alone(beams, item.most_tokens):
            arriving.append((at, item))
            expected += 1
        else:
            assert beams * pages(item.most_tokens) * BYTES > size
    for iteration in range(20_000):
        for at, item in arriving:
            if at == iteration:
                scheduler.add(item)
        if scheduler.idle and iteration > 6:
            break
        simulation.iterate()
    assert len(simulation.ended) == expected
    assert all(item.tokens == item.max_tokens for item in simulation.ended)
    assert not simulation.prefilled


def test_the_generation_that_arrived_last_is_preempted_and_continues_first() -> None:
    scheduler = FloverScheduler[CountedGeneration](
        3, COSTS, prefill_share=9.0, memory=MemoryBudget(6 * BYTES, PAGES, 3)
    )
    first, last, waiting = (CountedGeneration(float(number), math.inf, 5, 1, 30) for number in range(3))
    scheduler.add(first, last)
    assert scheduler.admit(0.0).admitted == (first, last)
    scheduler.prefill()
    scheduler.add(waiting)
    assert scheduler.admit(0.0).admitted == ()  # a slot is free, but with a page of growth each 9 pages would be used
    first.tokens = last.tokens = 7
    freed: list[CountedGeneration] = []
    assert scheduler.preempt(freed.append) == ()
    first.tokens = last.tokens = 8
    assert scheduler.preempt(freed.append) == (last,)
    assert freed == [last]
    assert [*scheduler] == [last, waiting, first]
    assert (last.prefill_tokens, scheduler.admit(0.0).admitted) == (13, ())
    scheduler.remove(first)
    assert scheduler.admit(0.0).admitted == (last,)
    assert [(each.start, each.end, each.last) for each in scheduler.prefill()] == [(0, 13, True)]


def test_beams_reserve_their_search_and_are_not_preempted() -> None:
    scheduler = FloverScheduler[CountedGeneration](
        4, COSTS, prefill_share=9.0, memory=MemoryBudget(8 * BYTES, PAGES, 4)
    )
    single, beams = CountedGeneration(0.0, math.inf, 3, 1, 30), CountedGeneration(1.0, math.inf, 3, 2, 9)
    scheduler.add(single, beams)
    assert scheduler.admit(0.0).admitted == (single, beams)
    scheduler.prefill()
    single.tokens = 5
    assert scheduler.preempt(lambda _item: None) == ()
    single.tokens = 6
    assert scheduler.preempt(lambda _item: None) == (single,)


def test_drafts_count() -> None:
    scheduler = FloverScheduler[CountedGeneration](
        2, COSTS, prefill_share=9.0, memory=MemoryBudget(3 * BYTES, PAGES, 2)
    )
    item = CountedGeneration(0.0, math.inf, 5, 1, 30)
    scheduler.add(item)
    scheduler.admit(0.0)
    scheduler.prefill()
    item.tokens = 2  # 6 tokens are held, 7 after the next step
    assert scheduler.fits_drafts({item: [1] * 5})
    assert not scheduler.fits_drafts({item: [1] * 6})


def test_the_least_recently_used_prefix_goes_first_from_its_end() -> None:
    memory = CommittedMemory(4, PAGES, 10 * BYTES)
    memory.write({0: 13, 1: 12, 2: 12})
    assert memory.bytes == 10 * BYTES
    assert not memory.fits({3: 1})
    # Slot 2 holds 8 tokens of a sequence, and what was after them is of no use.
    assert memory.release({3: 1}, SlotUse([13, 12, 8, 0], [1, 0, 3])) == {2: 8}
    memory.write({3: 1})
    assert memory.release({3: 5}, SlotUse([13, 12, 8, 1], [1, 0])) == {1: 8}
    memory.write({3: 5})
    assert memory.release({3: 17}, SlotUse([13, 8, 8, 5], [1, 0]), pinned=[1]) == {0: 4}
    assert list(memory.written) == [4, 8, 8, 5]


def test_memory_that_is_cleared_for_the_first_token_counts_as_it_is_cleared() -> None:
    memory = CommittedMemory(3, SlotPages((TokenRuns(2, 3, 50),), at_once=True), 300)
    assert [memory.uncleared(slot) for slot in range(3)] == [100, 100, 100]
    assert (memory.clear(0, 70), memory.clear(0, 70), memory.clear(0, 70)) == ((0, 70), (70, 100), (100, 100))
    assert memory.clear(1, 30) == (0, 30)
    assert memory.bytes == 130
    memory.write({2: 1})
    memory.move([(2, 0, False)], [0, 0, 1])  # what was cleared of slot 1 stays
    assert memory.clear(1, 30) == (30, 60)
    assert memory.bytes == 260
    memory.write({1: 1})
    assert (memory.bytes, [memory.uncleared(slot) for slot in range(3)]) == (300, [0, 0, 0])
    memory.released([0, 1])
    assert (memory.bytes, [memory.uncleared(slot) for slot in range(3)]) == (100, [100, 100, 0])
    assert CommittedMemory(1, PAGES, BYTES).uncleared(0) == 0


@pytest.mark.parametrize("holes", [False, True])
def test_holes_of_a_window_take_a_page(holes: bool) -> None:
    budget = MemoryBudget(5 * BYTES, PAGES, 4, holes)
    assert budget.fits_alone(1, 8)
    assert budget.fits_alone(1, 12) is not holes
