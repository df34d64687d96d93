"""Algorithm 1 of the OTAS paper: which batch a new query joins."""

from __future__ import annotations

import numpy as np
import pytest

from tests.otas.policies.profiles import query
from tidal.otas.policies import Query
from tidal.otas.policies.groups import Batching, Group

EARNS = np.array([1.0, 2.0])


PUBLISHED = Batching()


def batches(*queries: Query, batching: Batching = PUBLISHED) -> list[list[int]]:
    """Indices of the queries in each batch."""
    groups: list[Group] = []
    numbers = {each: number for number, each in enumerate(queries)}
    for each in queries:
        group = batching.group_for(each, groups)
        if group is None:
            groups.append(Group(each, EARNS))
        else:
            group.add(each, EARNS)
    return [[numbers[each] for each in group.queries] for group in groups]


def test_similar_queries_share_a_batch() -> None:
    assert batches(query(0.0, 0.6), query(0.1, 0.6), query(0.2, 0.6)) == [[0, 1, 2]]


def test_a_batch_closes_a_fixed_time_after_its_first_arrival() -> None:
    assert batches(query(0.0, 0.6), query(0.5, 0.4)) == [[0, 1]]  # s_b + δ < s_r is strict
    assert batches(query(0.0, 0.6), query(0.51, 0.4)) == [[0], [1]]


def test_the_search_ends_at_the_first_closed_batch() -> None:
    # The second batch is closed when the third query arrives; the first, which would accept it, is older still.
    early, late, third = query(0.0, 1.0), query(0.1, 1.6), query(0.65, 0.4)
    assert batches(early, late, third) == [[0], [1], [2]]


def test_deadlines_in_a_batch_differ_by_a_limited_time() -> None:
    assert batches(query(0.0, 0.5), query(0.0, 1.0)) == [[0, 1]]
    assert batches(query(0.0, 0.5), query(0.0, 1.001)) == [[0], [1]]
    # The difference is to the batch's earliest deadline.
    assert batches(query(0.0, 1.0), query(0.0, 0.6), query(0.0, 1.2)) == [[0, 1], [2]]


def test_utilities_differ_by_a_limit_from_the_first_query() -> None:
    assert batches(query(0.0, 1.0, 1.0), query(0.0, 1.0, 0.2)) == [[0, 1]]
    assert batches(query(0.0, 1.0, 1.0), query(0.0, 1.0, 0.01)) == [[0], [1]]
    assert batches(query(0.0, 1.0, 0.01), query(0.0, 1.0, 1.0)) == [[0], [1]]
    assert batches(query(0.0, 1.0, 1.0), query(0.0, 1.0, 0.3), query(0.0, 1.0, 0.01)) == [[0, 1], [2]]


def test_a_full_batch_is_skipped() -> None:
    assert batches(*(query(0.0, 1.0) for _ in range(5)), batching=Batching(size=2)) == [[0, 1], [2, 3], [4]]


def test_the_newest_suitable_batch_is_chosen() -> None:
    first, second, third = query(0.0, 0.5), query(0.0, 1.1), query(0.0, 0.8)
    assert batches(first, second, third) == [[0], [1, 2]]


def test_a_group_tracks_its_queries() -> None:
    first, second = query(1.0, 1.0, 1.0), query(1.2, 0.5, 0.5)
    group = Group(first, EARNS)
    group.add(second, 2 * EARNS)
    assert (group.arrival, group.deadline, group.utility, group.mean_utility) == (1.0, 1.7, 1.0, 0.75)
    assert group.earnings == pytest.approx([3.0, 6.0])
    group.remove([(first, EARNS)])
    assert (group.arrival, group.deadline, len(group)) == (1.2, 1.7, 1)
    assert group.earnings == pytest.approx([2.0, 4.0])
