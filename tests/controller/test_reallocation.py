"""Whether to change an allocation, and in which steps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.arlo.scheduling import AllocationProblem, RuntimeProfile, batch_size, reallocate, replacement_plan, stages

SLO_S = 0.4
PROFILES = tuple(RuntimeProfile.from_service(seconds, SLO_S) for seconds in (0.005, 0.01, 0.02))


def problem(gpus: int, *demand: float) -> AllocationProblem:
    return AllocationProblem(gpus, PROFILES, demand)


def test_short_queries_move_instances_to_the_short_runtime() -> None:
    found = reallocate(problem(3, 100.0, 0.0, 1.0), (1, 1, 1))
    assert found is not None
    assert found.after == (2, 0, 1)
    assert found.mean_best_s == pytest.approx(found.solution.mean_latency_s)
    assert found.mean_best_s < found.mean_before_s
    assert 0.05 < found.gain < 1


def test_without_demand_there_is_no_decision() -> None:
    assert reallocate(problem(3, 0.0, 0.0, 0.0), (1, 1, 1)) is None
    assert reallocate(problem(3, 1e-9, 0.0, 0.0), (1, 1, 1)) is None


def test_too_small_a_gain_keeps_the_allocation() -> None:
    demand = (30.0, 0.0, 1.0)
    sure = reallocate(problem(3, *demand), (1, 1, 1), 0.0)
    assert sure is not None
    assert sure.after == sure.solution.instances == (2, 0, 1)
    assert reallocate(problem(3, *demand), (1, 1, 1), sure.gain).after == (2, 0, 1)  # type: ignore[union-attr]
    kept = reallocate(problem(3, *demand), (1, 1, 1), sure.gain + 0.001)
    assert kept is not None
    assert kept.after == (1, 1, 1)
    assert kept.solution.instances == (2, 0, 1)


def test_another_number_of_gpus_is_used_whatever_the_gain() -> None:
    found = reallocate(problem(4, 1.0, 0.0, 1.0), (1, 1, 1), 0.99)
    assert found is not None
    assert sum(found.after) == 4


def test_a_demand_above_the_capacity_still_gets_the_best_allocation() -> None:
    found = reallocate(problem(3, 300.0, 100.0, 40.0), (0, 0, 3))
    assert found is not None
    assert found.after != (0, 0, 3)
    assert found.solution.shortfall is not None
    assert found.gain > 0.05


counts = st.lists(st.integers(0, 30), min_size=3, max_size=3).map(lambda c: (c[0], c[1], c[2] + 1))
demands = st.tuples(*[st.floats(0, 200)] * 3)


@settings(max_examples=30)
@given(counts, demands, st.floats(0, 0.5))
def test_a_decision_improves_the_prediction_and_keeps_the_gpus(
    present: tuple[int, int, int], demand: tuple[float, float, float], min_gain: float
) -> None:
    found = reallocate(problem(sum(present), *demand), present, min_gain)
    if found is None:
        return
    assert sum(found.after) == sum(present)
    assert found.after[-1] >= 1
    if found.after != present:
        assert found.gain >= min_gain
        assert found.mean_best_s < found.mean_before_s
        again = reallocate(problem(sum(present), *demand), found.after, min_gain)
        assert again is not None
        assert again.after == found.after, "it does not converge"


@given(counts, counts)
def test_stages_reach_the_target_with_the_fewest_replacements(
    before: tuple[int, int, int], after: tuple[int, int, int]
) -> None:
    steps = [step for (step,) in stages([before], [after])]
    assert (steps[-1] if steps else before) == after
    least = [min(a, b) for a, b in zip(before, after, strict=True)]
    moved, last = 0, before
    for step in steps:
        changes = [b - a for a, b in zip(last, step, strict=True)]
        moves = max(sum(c for c in changes if c > 0), -sum(c for c in changes if c < 0))
        assert 1 <= moves <= batch_size(sum(before))
        assert all(have >= few for have, few in zip(step, least, strict=True))
        moved, last = moved + moves, step
    assert moved == len(replacement_plan([before], [after]))
