"""Which tokens are reused: prefixes by brute force, the choice of slots, and prompts that wait for each other."""

from __future__ import annotations

import math
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flover.policies.test_scheduler import COSTS, iterate
from tidal.flover.policies import FloverScheduler, Schedulable
from tidal.flover.policies.prefixes import FreeSlot, choose_slot, common_prefix

IDS = st.lists(st.integers(0, 2), max_size=12)


@given(IDS, IDS)
def test_common_prefix_equals_a_slow_count(first: list[int], second: list[int]) -> None:
    slow = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))))
    assert common_prefix(np.array(first, np.int64), np.array(second, np.int64)) == slow


@pytest.mark.parametrize(
    ("free", "chosen"),
    [
        # Nothing is held: the nearest.
        ([(0, 0, 0, 0, 3), (1, 0, 0, 0, 1), (2, 0, 0, 0, 2)], 1),
        # A slot that the prompt continues, the longest of them.
        ([(0, 0, 0, 0, 0), (1, 20, 20, 1, 5), (2, 30, 30, 2, 6)], 2),
        # A longer one that also has other tokens is left: an empty slot gets a copy.
        ([(0, 90, 40, 2, 0), (1, 0, 0, 0, 7)], 1),
        # The least recently used of those that lose tokens.
        ([(0, 90, 40, 3, 0), (1, 50, 0, 1, 7), (2, 10, 9, 2, 1)], 1),
    ],
)
def test_the_slot_of_a_prompt(free: list[tuple[int, int, int, int, int]], chosen: int) -> None:
    assert choose_slot(FreeSlot(*each) for each in free) == chosen


class Shared:
    """Every prompt begins with the same tokens; what is held of them is given."""

    def __init__(self, shared: int, held: int = 0) -> None:
        self.tokens, self.held = shared, held

    def reusable(self, item: Schedulable) -> int:
        return min(self.held, item.prompt_tokens - 1)

    def shared(self, item: Schedulable, other: Schedulable) -> int:
        return self.tokens


def scheduler(prefixes: Shared, *prompts: int, deadline: float = math.inf) -> FloverScheduler[Schedulable]:
    made = FloverScheduler[Schedulable](8, COSTS, prefill_share=1.0)
    made.prefixes = prefixes
    made.add(*(Schedulable(0.0, deadline, tokens) for tokens in prompts))
    return made


def test_a_prompt_starts_behind_what_is_held() -> None:
    found = iterate(scheduler(Shared(90, held=90), 100), 0.0)
    assert [(each.start, each.end) for each in found] == [(90, 100)]


def test_prompts_wait_for_one_that_computes_what_they_share() -> None:
    prefixes = Shared(90)
    three = scheduler(prefixes, 100, 101, 102)
    assert [(each.start, each.end) for each in iterate(three, 0.0)] == [(0, 100)]
    prefixes.held = 90
    assert [(each.start, each.end) for each in three.prefill()] == [(90, 101), (90, 102)]
    assert three.running == 3


def test_prompts_that_share_little_do_not_wait() -> None:
    found = iterate(scheduler(Shared(40), 100, 101, 102), 0.0)
    assert [(each.start, each.end) for each in found] == [(0, 100), (0, 101), (0, 102)]


def test_a_deadline_that_the_rest_of_a_prompt_meets_is_kept() -> None:
    late, kept = scheduler(Shared(0), 1000, deadline=0.3), scheduler(Shared(0, held=900), 1000, deadline=0.3)
    assert len(late.admit(0.0).refused) == 1
    assert len(kept.admit(0.0).admitted) == 1
