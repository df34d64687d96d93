"""The rules that choose a runtime for a query, and their use in the policy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arlo.placing import make_level, take
from tidal.arlo.loading import dispatch_rule
from tidal.arlo.parameters import ArloParameters
from tidal.arlo.policies import CompletionRule, CongestionRule, PartitionedPolicy
from tidal.arlo.policies.levels import RuntimeLevel


def levels_of(seconds: list[float], loads: list[list[int]]) -> list[RuntimeLevel]:
    made = [make_level(64 * (number + 1), 10, each) for number, each in enumerate(loads)]
    for level, its in zip(made, seconds, strict=True):
        level.seconds = its
    return made


@given(
    rows=st.lists(
        st.tuples(st.integers(1, 50), st.lists(st.integers(0, 30), min_size=1, max_size=4)), min_size=1, max_size=6
    ),
    share=st.sampled_from([1.0, 0.5, 0.25]),
)
@settings(max_examples=300, deadline=None)
def test_the_chosen_runtime_answers_first(rows: list[tuple[int, list[int]]], share: float) -> None:
    """Compared with the costs of all runtimes, all of which are exact numbers."""
    seconds = [float(each) for each, _ in rows]  # a measured profile need not ascend
    levels = levels_of(seconds, [loads for _, loads in rows])
    costs = [(min(loads) / share + 1) * its for its, (_, loads) in zip(seconds, rows, strict=True)]
    assert CompletionRule().choose(levels, share) is levels[int(np.argmin(costs))]


def test_a_longer_runtime_that_idles_is_used_only_where_it_is_faster() -> None:
    policy = PartitionedPolicy([64, 512], [0.010, 0.035], 0.35, [1, 1], rule=CompletionRule())
    assert [take(policy, 20) for _ in range(7)] == [0, 0, 0, 1, 0, 0, 0]
    assert [take(policy, 200) for _ in range(2)] == [1, 1]


def test_a_longer_runtime_that_was_measured_as_faster_is_not_preferred() -> None:
    policy = PartitionedPolicy([16, 64], [0.0011, 0.0010], 0.02, [1, 1], rule=CompletionRule())
    assert [take(policy, 10) for _ in range(3)] == [0, 1, 0]


def test_algorithm_1_keeps_them_in_the_queue_of_the_shorter_one() -> None:
    policy = PartitionedPolicy([64, 512], [0.010, 0.035], 0.35, [1, 1])
    assert [take(policy, 20) for _ in range(7)] == [0] * 7


def test_loads_of_other_entrances_are_estimated_from_the_share() -> None:
    levels = levels_of([1.0, 2.5], [[1], [0]])
    assert CompletionRule().choose(levels, 1.0) is levels[0]  # after 2.0 s
    assert CompletionRule().choose(levels, 0.5) is levels[1]  # the first one has likely 2, and answers after 3.0 s


@pytest.mark.parametrize(
    ("given_", "rule"),
    [
        ({}, CompletionRule()),
        ({"dispatch": "completion"}, CompletionRule()),
        ({"dispatch": "congestion", "congestion_threshold": 0.5, "peek_levels": 2}, CongestionRule(0.5, 0.9, 2)),
    ],
)
def test_parameters_name_the_rule(given_: dict[str, object], rule: object) -> None:
    assert dispatch_rule(ArloParameters.model_validate(given_)) == rule


def test_another_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="'completion' or 'congestion'"):
        ArloParameters.model_validate({"dispatch": "fastest"})
