"""When a draft model drafts: brute force over depths, limits of time, catching up with tokens, and probes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flover.policies.test_speculation import Costs
from tidal.flover.policies import Draft, DraftingPolicy, SpeculationPolicy
from tidal.flover.policies.drafting import Candidate, Drafting


@dataclass
class ModelCosts:
    """A pass takes `step` seconds, and each token more takes `token`."""

    step: float = 0.05
    token: float = 0.001

    def decode_seconds(self, running: int, tokens: int) -> float:
        return self.step

    def prefill_seconds(self, start: int, end: int) -> float:
        return self.step + self.chunk_seconds(start, end)

    def chunk_seconds(self, start: int, end: int, rows: int = 0) -> float:
        return self.token * (end - start)


def candidate(acceptance: float, length: int = 4, uncached: int = 1, remaining: int = 100) -> Candidate:
    return Candidate(Draft(length, acceptance), None, uncached, remaining)


def best_rate(costs: Costs, own: ModelCosts, models: list[Draft], lookups: list[Draft], running: int) -> list[float]:
    """Most expected tokens per second by depth, over all numbers of checked tokens."""
    found = []
    for depth in range(max(draft.length for draft in models) + 1):
        drafts = [*lookups, *(Draft(min(depth, draft.length), draft.acceptance) for draft in models)]
        rates = []
        for counts in itertools.product(*(range(draft.length + 1) for draft in drafts)):
            gained = sum(
                draft.acceptance**position
                for draft, count in zip(drafts, counts, strict=True)
                for position in range(1, count + 1)
            )
            rates.append((running + gained) / (costs.step + costs.row * sum(counts) + own.step * depth))
        found.append(max(rates))
    return found


@given(
    models=st.lists(st.builds(Draft, st.integers(1, 4), st.floats(0, 1)), min_size=1, max_size=2),
    lookups=st.lists(st.builds(Draft, st.integers(1, 2), st.floats(0, 1)), max_size=2),
    more=st.integers(0, 4),
    row=st.floats(0.001, 0.5),
    step=st.floats(0.001, 0.5),
)
@settings(max_examples=200, deadline=None)
def test_no_other_depth_generates_more_tokens_per_second(
    models: list[Draft], lookups: list[Draft], more: int, row: float, step: float
) -> None:
    costs, own, running = Costs(row=row), ModelCosts(step, 0), len(models) + len(lookups) + more
    checking = SpeculationPolicy(costs, share=100.0)
    # Generations whose drafts cannot pay by their acceptance are not drafted for at all.
    models = [draft for draft in models if draft.acceptance >= checking.least_acceptance(running, 10)]
    policy = DraftingPolicy(checking, own)
    policy.plan([candidate(0.0)], lookups, running, 10, 0)  # the probe
    plan = policy.plan([Candidate(draft, None, 1, 100) for draft in models], lookups, running, 10, 1)
    if not models:
        assert not plan.draftings
        return
    rates = best_rate(costs, own, models, lookups, running)
    depth = max((each.depth for each in plan.draftings.values()), default=0)
    if max(rates) > rates[0] * 1.0201 * 1.04:
        assert rates[depth] == pytest.approx(max(rates))
    if max(rates) < rates[0] * 1.0399:
        assert depth == 0
    for index, each in plan.draftings.items():
        assert each == Drafting(1, min(depth, models[index].length))


@given(st.floats(0, 1), st.integers(1, 32), st.floats(0.0, 2.0), st.integers(0, 300))
def test_drafting_and_checking_stay_within_the_bound(
    acceptance: float, running: int, step: float, uncached: int
) -> None:
    own = ModelCosts(step, 0.01)
    checking = SpeculationPolicy(Costs(row=0.05), share=1.0)
    policy = DraftingPolicy(checking, own)
    policy.plan([candidate(0.0)], [], running, 10, 0)
    every = [candidate(acceptance, uncached=uncached + 1)] * running
    plan = policy.plan(every, [], running, 10, 1)
    drafts = [Draft(each.depth, acceptance) for each in plan.draftings.values() if each.depth]
    rows = sum(checking.select(drafts, running, 10, plan.seconds))
    # At least 16 tokens are prefilled, however long that takes, and all of generations that are not far behind.
    prefilled = sum(each.tokens for each in plan.draftings.values())
    assert plan.seconds + rows * 0.05 <= 1.0 + step + max(0.5, prefilled * 0.01)
    assert prefilled <= 512


def test_accepted_drafts_are_long_and_rejected_ones_end() -> None:
    policy = DraftingPolicy(SpeculationPolicy(Costs(row=0.01), share=1.0), ModelCosts(0.05))
    policy.plan([candidate(0.0)], [], 1, 10, 0)
    depths = [policy.plan([candidate(each, 8)], [], 1, 10, 1).draftings.get(0, (0, 0))[1] for each in (0.95, 0.6, 0.02)]
    assert depths[0] > depths[1] > depths[2] == 0


def test_nothing_is_drafted_where_many_generations_share_a_step() -> None:
    checking = SpeculationPolicy(Costs(row=0.5), share=10.0)
    policy = DraftingPolicy(checking, ModelCosts(0.05))
    assert policy.plan([candidate(0.9)], [], 1, 10, 0).draftings
    for number in range(200):
        assert not policy.plan([candidate(0.9)] * 32, [], 32, 10, number + 1).draftings


def test_a_long_prompt_is_prefilled_over_several_passes_if_its_text_is_long() -> None:
    policy = DraftingPolicy(SpeculationPolicy(Costs(row=0.01), share=1.0), ModelCosts(0.05, 0.01))
    policy.plan([candidate(0.0)], [], 1, 10, 0)
    assert not policy.plan([candidate(0.8, uncached=1000, remaining=20)], [], 1, 10, 1).draftings
    uncached, passes = 1000, 0
    while True:
        found = policy.plan([candidate(0.8, uncached=uncached, remaining=1000)], [], 1, 10, 2).draftings[0]
        passes += 1
        assert found.tokens <= 50  # half of the duration of a step
        uncached -= found.tokens
        if found.depth:
            break
    assert uncached == 0
    assert passes == 20


def test_generations_that_are_not_behind_are_drafted_for_meanwhile() -> None:
    policy = DraftingPolicy(SpeculationPolicy(Costs(row=0.01), share=1.0), ModelCosts(0.05, 0.01))
    policy.plan([candidate(0.0)], [], 1, 10, 0)
    found = policy.plan([candidate(0.8, uncached=900, remaining=1000), candidate(0.8)], [], 2, 10, 1).draftings
    assert found[0] == Drafting(50, 0)
    assert found[1].tokens == 1
    assert found[1].depth > 0


def test_rejected_drafts_are_tried_again_now_and_then() -> None:
    policy = DraftingPolicy(SpeculationPolicy(Costs(row=0.01), share=1.0), ModelCosts(0.05))
    tried = [number for number in range(1280) if policy.plan([candidate(0.0)], [], 1, 10, number).draftings]
    assert tried == list(range(0, 1280, 128))


def test_passes_that_take_longer_than_predicted_end_drafts_and_are_tried_again() -> None:
    policy = DraftingPolicy(SpeculationPolicy(Costs(row=0.01), share=10.0), ModelCosts(0.4))
    every = [candidate(0.65)]
    policy.plan([candidate(0.0)], [], 1, 10, 0)
    plan = policy.plan(every, [], 1, 10, 1)
    assert plan.draftings
    for _ in range(100):
        policy.measured(plan, plan.seconds * 2)
    assert not policy.plan(every, [], 1, 10, 2).draftings
    for _ in range(4000):
        policy.rested()
    assert policy.plan(every, [], 1, 10, 3).draftings


def test_lookups_that_take_no_time_are_preferred_to_drafts_that_gain_little_more() -> None:
    policy = DraftingPolicy(SpeculationPolicy(Costs(row=0.01), share=10.0), ModelCosts(0.2))
    policy.plan([candidate(0.0)], [], 1, 10, 0)
    for acceptance, lookup, drafted in ((0.62, Draft(4, 0.6), False), (0.9, Draft(4, 0.1), True)):
        plan = policy.plan([Candidate(Draft(4, acceptance), lookup, 1, 100)], [], 1, 10, 1)
        assert bool(plan.draftings) == drafted
