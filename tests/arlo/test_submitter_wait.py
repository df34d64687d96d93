"""How long the submitting thread waits for the batches that it starts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidal.arlo.policies import ArloBatch, ArloQuery
from tidal.arlo.submitter_wait import ALONE_S, SubmitterWait


def make_batch(seconds: float, *, alone: bool) -> ArloBatch:
    return ArloBatch(0, 0, [ArloQuery(8, 0.0)], seconds, alone)


def waited(wait: SubmitterWait, now: float, *, took: float = 0.01) -> bool:
    """Submit one query whose batch runs alone; return whether the thread waits for it."""
    wait.submitted_at(now)
    batch = make_batch(took, alone=True)
    if wait.limit_s(batch, now, since=now, rows=1) < took:
        return False
    wait.waited(batch, now + took)
    return True


@pytest.mark.parametrize(
    ("seconds", "alone", "waits"),
    [(0.5e-3, False, True), (5e-3, False, False), (5e-3, True, True), (50e-3, True, False), (math.inf, True, False)],
)
def test_it_waits_for_short_batches_and_longer_for_lone_ones(seconds: float, alone: bool, waits: bool) -> None:
    wait = SubmitterWait(grouped=True)
    assert (wait.limit_s(make_batch(seconds, alone=alone), 1.0, since=1.0, rows=1) > 0) == waits


def test_the_waits_of_a_submission_are_bounded_together() -> None:
    wait = SubmitterWait(grouped=True)
    assert wait.limit_s(make_batch(0.5e-3, alone=False), 1.002, since=1.0, rows=1) == 0


def test_submissions_of_one_request_each_do_not_wait() -> None:
    wait = SubmitterWait(grouped=False)
    assert wait.limit_s(make_batch(0.1e-3, alone=True), 1.0, since=1.0, rows=1) == 0


def test_after_a_deadline_there_are_no_long_waits_for_10_seconds() -> None:
    wait = SubmitterWait(grouped=True)
    wait.deadline_at(1.0)
    assert not waited(wait, 5.0)
    assert waited(wait, 11.1)


def test_waits_that_hide_arrivals_end_and_are_tried_again() -> None:
    wait, now, waits = SubmitterWait(grouped=True), 1.0, []
    for _ in range(200):  # the next query arrives while the batch runs, and is read right after it
        waits.append(waited(wait, now))
        now += 0.011
    assert waits[0]
    assert 2 <= sum(waits[-64:]) <= 5
    for _ in range(200):  # the next query arrives long after it
        waits.append(waited(wait, now))
        now += 0.05
    assert all(waits[-32:])


@given(
    batches=st.lists(st.tuples(st.floats(1e-5, 0.1), st.booleans(), st.floats(0, 0.1), st.booleans()), max_size=80),
)
def test_no_wait_is_longer_than_its_bound(batches: list[tuple[float, bool, float, bool]]) -> None:
    wait, now = SubmitterWait(grouped=True), 0.0
    for seconds, alone, pause, deadline in batches:
        now += pause
        wait.submitted_at(now)
        if deadline:
            wait.deadline_at(now)
        batch = make_batch(seconds, alone=alone)
        limit = wait.limit_s(batch, now, since=now, rows=2)
        assert 0 <= limit <= ALONE_S + 1e-3
        if deadline:
            assert limit <= 2e-3
        if seconds <= limit:
            wait.waited(batch, now + seconds)
            now += seconds
