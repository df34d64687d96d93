"""How many drafted tokens a pass checks: brute force over all numbers, limits, and what measurements change."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.flover.policies import Draft, DraftAcceptance, SpeculationPolicy
from tidal.flover.policies.speculation import MOST_DRAFTED


@dataclass
class Costs:
    """A step takes `step` seconds, and each row more takes `row`."""

    step: float = 1.0
    row: float = 0.1

    def decode_seconds(self, running: int, tokens: int) -> float:
        return self.step

    def prefill_seconds(self, start: int, end: int) -> float:
        return self.step + self.chunk_seconds(start, end)

    def chunk_seconds(self, start: int, end: int, rows: int = 0) -> float:
        return self.row * (end - start)


def rate(policy: SpeculationPolicy, costs: Costs, drafts: list[Draft], running: int, counts: list[int]) -> float:
    """Expected tokens per second of a pass that checks so many tokens of each draft."""
    gained = sum(
        draft.acceptance**position
        for draft, count in zip(drafts, counts, strict=True)
        for position in range(1, count + 1)
    )
    return (running + gained) / (costs.step + costs.row * sum(counts))


@given(
    drafts=st.lists(st.builds(Draft, st.integers(1, 4), st.floats(0, 1)), max_size=3),
    others=st.integers(0, 6),
    row=st.floats(0.001, 1.0),
)
@settings(max_examples=200, deadline=None)
def test_no_other_numbers_generate_more_tokens_per_second(drafts: list[Draft], others: int, row: float) -> None:
    costs, running = Costs(row=row), max(1, len(drafts) + others)
    policy = SpeculationPolicy(costs, share=100.0)
    found = policy.select(drafts, running, 10)
    every = itertools.product(*(range(draft.length + 1) for draft in drafts))
    best = max(rate(policy, costs, drafts, running, list(counts)) for counts in every)
    without = rate(policy, costs, drafts, running, [0] * len(drafts))
    assert all(0 <= count <= draft.length for count, draft in zip(found, drafts, strict=True))
    if best > without * 1.0201:
        assert rate(policy, costs, drafts, running, found) == pytest.approx(best)
    if best < without * 1.0199:
        assert found == [0] * len(drafts)


@given(acceptance=st.floats(0.01, 1), running=st.integers(1, 64), row=st.floats(0.001, 1.0))
def test_below_the_least_acceptance_nothing_is_checked(acceptance: float, running: int, row: float) -> None:
    policy = SpeculationPolicy(Costs(row=row), share=100.0)
    if acceptance < policy.least_acceptance(running, 10):
        assert policy.select([Draft(MOST_DRAFTED, acceptance)] * running, running, 10) == [0] * running


def test_drafts_extend_a_step_by_the_share_at_most() -> None:
    policy = SpeculationPolicy(Costs(row=0.1), share=0.5)
    assert policy.select([Draft(15, 1.0)], 1, 10) == [5]
    assert sum(policy.select([Draft(15, 1.0)] * 4, 4, 10)) <= 5


def test_a_draft_is_never_longer_than_the_most() -> None:
    policy = SpeculationPolicy(Costs(row=0.001), share=100.0)
    assert policy.select([Draft(100, 1.0)], 1, 10) == [MOST_DRAFTED]
    assert sum(policy.select([Draft(MOST_DRAFTED, 1.0)] * 64, 64, 10)) <= 256


@given(most=st.integers(0, 40), drafts=st.lists(st.builds(Draft, st.integers(1, 15), st.floats(0.9, 1)), max_size=9))
def test_a_pass_checks_no_more_rows_than_the_memory_holds(most: int, drafts: list[Draft]) -> None:
    policy = SpeculationPolicy(Costs(row=0.0001), share=100.0, most_rows=most)
    assert sum(policy.select(drafts, max(1, len(drafts)), 10)) == min(most, sum(draft.length for draft in drafts))


def test_drafts_that_take_longer_than_predicted_end_and_are_tried_again() -> None:
    policy = SpeculationPolicy(Costs(row=0.01), share=1.0)
    drafts = [Draft(8, 0.5)]
    assert policy.select(drafts, 1, 10) != [0]
    for _ in range(100):
        policy.measured(1, 10, 3, 4.0)  # 3 seconds more than without
    assert policy.select(drafts, 1, 10) == [0]
    for _ in range(4000):
        policy.measured(1, 10, 0, 1.0)
    assert policy.select(drafts, 1, 10) != [0]


def test_steps_that_take_longer_than_predicted_make_drafts_cheaper() -> None:
    policy = SpeculationPolicy(Costs(row=0.3), share=1.0)
    assert policy.select([Draft(8, 0.25)], 1, 10) == [0]
    for _ in range(100):
        policy.measured(1, 10, 0, 3.0)
    assert policy.select([Draft(8, 0.25)], 1, 10) == [1]


def test_acceptance_follows_what_is_observed() -> None:
    acceptance = DraftAcceptance(0.5)
    for _ in range(50):
        acceptance.observe(4, rejected=False)
    assert acceptance.mean > 0.99
    for _ in range(50):
        acceptance.observe(0, rejected=True)
    assert acceptance.mean < 0.01
    for _ in range(200):
        acceptance.observe(1, rejected=True)
    assert acceptance.mean == pytest.approx(0.5, abs=0.05)
