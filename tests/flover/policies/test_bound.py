"""The bound on prefill beside decode steps under costs that are wrong."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flover.policies.test_scheduler import COSTS, Linear
from tidal.flover.policies import FloverScheduler, Schedulable
from tidal.flover.policies.bound import ALONE_EVERY, LEAST_STEP_S, PrefillBound

RUNNING, TOKENS = 4, 100


def test_without_measurements_the_bound_is_that_of_the_costs() -> None:
    bound = PrefillBound(COSTS, 0.5)
    assert bound.seconds(RUNNING, TOKENS) == pytest.approx(0.5 * COSTS.decode_seconds(RUNNING, TOKENS))


@given(st.floats(0.6, 1.9), st.floats(0.6, 1.9), st.sampled_from([0.3, 1.0, 4.0]))
def test_iterations_take_as_long_as_the_bound_allows_after_some_were_measured(
    step_factor: float, mixed_factor: float, share: float
) -> None:
    bound, step = PrefillBound(COSTS, share), COSTS.decode_seconds(RUNNING, TOKENS)
    for _ in range(200):
        bound.expect(RUNNING, TOKENS, 0.0)
        bound.measured(step_factor * step)
    seconds = 0.0
    for _ in range(400):
        added = max(bound.seconds(RUNNING, TOKENS), 0.1 * step)  # the smallest chunk
        seconds = mixed_factor * (step + added)
        bound.expect(RUNNING, TOKENS, added)
        bound.measured(seconds)
    allowed = (1 + share) * step_factor * step
    assert seconds <= max(1.01 * allowed, mixed_factor * 1.1 * step + 1e-9)
    assert seconds >= 0.97 * allowed or bound.seconds(RUNNING, TOKENS) == 0


def test_iterations_that_the_bound_is_not_for_are_not_compared() -> None:
    bound, step = PrefillBound(COSTS, 1.0), COSTS.decode_seconds(RUNNING, TOKENS)
    bound.expect(RUNNING, TOKENS, step)
    bound.expect_nothing()
    bound.measured(100.0)
    assert bound.seconds(RUNNING, TOKENS) == pytest.approx(step)


def test_a_single_delay_changes_little() -> None:
    bound, step = PrefillBound(COSTS, 1.0), COSTS.decode_seconds(RUNNING, TOKENS)
    bound.expect(RUNNING, TOKENS, step)
    bound.measured(1000.0)
    assert bound.seconds(RUNNING, TOKENS) > 0.75 * step


def test_nearly_all_iterations_keep_the_bound_where_they_vary() -> None:
    bound, step, draw = PrefillBound(COSTS, 1.0), COSTS.decode_seconds(RUNNING, TOKENS), random.Random(0)
    late = 0
    for number in range(2000):
        added = bound.seconds(RUNNING, TOKENS)
        seconds = (step + added) * draw.gauss(1.1, 0.05)
        bound.expect(RUNNING, TOKENS, added)
        bound.measured(seconds)
        late += number >= 100 and seconds > 2 * step
    assert late < 40


def test_all_but_few_iterations_keep_the_bound_where_some_take_much_longer() -> None:
    bound, step, draw = PrefillBound(COSTS, 1.0), COSTS.decode_seconds(RUNNING, TOKENS), random.Random(0)
    late = 0
    for number in range(4000):
        added = bound.seconds(RUNNING, TOKENS)
        # One in twenty takes 1.25 to 1.5 times as long.
        seconds = (step + added) * (draw.uniform(1.25, 1.5) if draw.random() < 0.05 else draw.uniform(0.98, 1.02))
        bound.expect(RUNNING, TOKENS, added)
        bound.measured(seconds)
        late += number >= 200 and seconds > 2 * step
    assert late < 0.025 * 3800


@given(st.floats(0.0, 6.0), st.integers(1, 60))
def test_what_every_step_takes_besides_its_pass_leaves_prompts_their_time(overhead: float, running: int) -> None:
    """Prompts always wait, so that steps without them are those alone that the bound asks for."""
    bound, step, added = PrefillBound(COSTS, 1.0), COSTS.decode_seconds(running, TOKENS), 0.0
    for _ in range(40 * ALONE_EVERY):
        added = 0.0 if bound.needs_step else bound.seconds(running, TOKENS) or 0.1 * step
        bound.expect(running, TOKENS, added)
        bound.measured((1 + overhead) * step + added)
    added = bound.seconds(running, TOKENS)
    assert 0.9 * (1 + overhead) * step <= added <= 1.05 * (1 + overhead) * step


class Fast(Linear):
    """A step takes 0.1 ms."""

    def decode_seconds(self, running: int, tokens: int) -> float:
        return 1e-4


def test_a_step_counts_as_5_ms_at_least() -> None:
    assert PrefillBound(Fast(), 0.5).seconds(RUNNING, TOKENS) == pytest.approx(0.5 * LEAST_STEP_S)


def test_a_step_runs_alone_now_and_then_while_prompts_wait() -> None:
    scheduler: FloverScheduler[Schedulable] = FloverScheduler(2, COSTS, prefill_share=1.0)
    scheduler.add(Schedulable(0.0, math.inf, 4))
    scheduler.admit(0.0)
    scheduler.prefill()
    scheduler.add(Schedulable(0.0, math.inf, 1_000_000))
    scheduler.admit(0.0)
    alone = []
    for number in range(300):
        alone += [] if scheduler.prefill() else [number]
        scheduler.measured(0.02)
    gaps = [after - before for before, after in pairwise(alone)]
    assert max(gaps) == ALONE_EVERY + 1
    assert len(alone) < 20
