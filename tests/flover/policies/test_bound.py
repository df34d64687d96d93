"""The bound on prefill beside decode steps under costs that are wrong."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flover.policies.test_scheduler import COSTS
from tidal.flover.policies.bound import PrefillBound

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
    for _ in range(200):
        added = max(bound.seconds(RUNNING, TOKENS), 0.1 * step)  # the smallest chunk
        seconds = mixed_factor * (step + added)
        bound.expect(RUNNING, TOKENS, added)
        bound.measured(seconds)
    allowed = (1 + share) * step_factor * step
    assert seconds <= max(1.01 * allowed, mixed_factor * 1.1 * step + 1e-9)
    assert seconds >= 0.99 * allowed or bound.seconds(RUNNING, TOKENS) == 0


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
