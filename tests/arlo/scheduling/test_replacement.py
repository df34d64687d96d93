"""Replacement plans have the fewest changes and never go below the wanted counts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidal.arlo.scheduling import Replacement, replacement_batches, replacement_plan
from tidal.errors import InvalidArgument

COUNTS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=12)


@given(COUNTS)
def test_plans_have_the_fewest_changes_and_keep_the_wanted_instances(pairs: list[tuple[int, int]]) -> None:
    current, wanted = [have for have, _ in pairs], [want for _, want in pairs]
    plan = replacement_plan([current], [wanted])
    gaps = [want - have for have, want in pairs]
    assert len(plan) == max(sum(gap for gap in gaps if gap > 0), -sum(gap for gap in gaps if gap < 0))
    counts = Counter(dict(enumerate(current)))
    for change in plan:
        assert change.source != change.target
        if change.source is not None:
            counts[change.source] -= 1
        if change.target is not None:
            counts[change.target] += 1
        assert all(counts[i] >= min(have, want) for i, (have, want) in enumerate(pairs))
    assert [counts[i] for i in range(len(pairs))] == wanted


def test_runtimes_alternate_as_source_and_target() -> None:
    plan = replacement_plan([[6, 3, 0, 1]], [[2, 1, 4, 3]])
    assert [change.source for change in plan] == [0, 1, 0, 0, 1, 0]
    assert [change.target for change in plan] == [2, 3, 2, 2, 3, 2]


def test_new_gpus_fill_gaps_before_anything_is_replaced() -> None:
    assert replacement_plan([[2, 1]], [[1, 3]]) == [Replacement(None, 1), Replacement(0, 1)]


def test_gpus_are_released_last() -> None:
    assert replacement_plan([[3, 1]], [[0, 2]]) == [Replacement(0, 1), Replacement(0, None), Replacement(0, None)]


def test_nothing_to_do() -> None:
    assert replacement_plan([[2, 1]], [[2, 1]]) == []


def test_batches() -> None:
    plan = replacement_plan([[5, 0]], [[0, 5]])
    assert [len(batch) for batch in replacement_batches(plan, 2)] == [2, 2, 1]
    assert [change for batch in replacement_batches(plan, 2) for change in batch] == plan


def test_bad_inputs_are_named() -> None:
    with pytest.raises(InvalidArgument, match="must have a count for the same runtimes, got 1 and 2 counts"):
        replacement_plan([[1]], [[1, 2]])
    with pytest.raises(InvalidArgument, match="counts must not be negative"):
        replacement_plan([[-1, 2]], [[1, 0]])
    with pytest.raises(InvalidArgument, match="size must be at least 1 change, got 0"):
        replacement_batches([], 0)
