"""Overload control: when a faster candidate serves, and when the first one serves again."""

from __future__ import annotations

from tidal.tabi.choice import OverloadControl


def feed(overload: OverloadControl, start: float, seconds: float, excess_ms: float, every_s: float = 0.05) -> float:
    """Observe queries of a constant excess for some seconds; return the time after the last."""
    now = start
    while now < start + seconds:
        overload.observe(now, excess_ms)
        overload.candidate(now)
        now += every_s
    return now


def test_without_excess_the_first_candidate_serves() -> None:
    overload = OverloadControl((7, 5, 2), 50)
    now = feed(overload, 0, 60, 10)
    assert overload.candidate(now) == 7


def test_one_slow_query_changes_nothing() -> None:
    overload = OverloadControl((7, 5), 50)
    now = feed(overload, 0, 5, 0)
    overload.observe(now, 500)
    assert overload.candidate(now) == 7


def test_lasting_excess_descends_the_ladder_step_by_step() -> None:
    overload = OverloadControl((7, 5, 2), 50)
    now = feed(overload, 0, 1, 200)
    assert overload.candidate(now) == 5
    now = feed(overload, now, 0.8, 200)
    assert overload.candidate(now) == 5  # still in the cooldown of the first step
    now = feed(overload, now, 10, 200)
    assert overload.candidate(now) == 2


def test_it_returns_only_after_a_calm_period() -> None:
    overload = OverloadControl((7, 5), 50)
    now = feed(overload, 0, 3, 200)
    assert overload.candidate(now) == 5
    now = feed(overload, now, 30, 40)  # below the limit, above its half
    assert overload.candidate(now) == 5
    now = feed(overload, now, 9, 5)
    assert overload.candidate(now) == 5
    now = feed(overload, now, 4, 5)
    assert overload.candidate(now) == 7


def test_each_step_back_takes_a_calm_period() -> None:
    overload = OverloadControl((7, 5, 2), 50)
    now = feed(overload, 0, 10, 200)
    assert overload.candidate(now) == 2
    now = feed(overload, now, 14, 0)
    assert overload.candidate(now) == 5
    now = feed(overload, now, 11, 0)
    assert overload.candidate(now) == 7


def test_the_excess_decays_without_queries() -> None:
    overload = OverloadControl((7, 5), 50)
    now = feed(overload, 0, 3, 200)
    assert overload.excess_ms(now) > 100
    assert overload.excess_ms(now + 10) < 1
    assert overload.candidate(now + 10) == 5
    assert overload.candidate(now + 21) == 7


def test_fast_queries_do_not_offset_slow_ones() -> None:
    overload = OverloadControl((7, 5), 50)
    now = 0.0
    for _ in range(200):
        overload.observe(now, -1000)
        overload.observe(now, 200)
        now += 0.05
    assert overload.candidate(now) == 5
