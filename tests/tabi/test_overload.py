"""When a faster candidate takes over, and when the first one comes back."""

from __future__ import annotations

from tidal.tabi.choice import OverloadControl


def feed(overload: OverloadControl, start: float, seconds: float, excess_ms: float, every_s: float = 0.05) -> float:
    """Queries of one excess for some time; the time at its end."""
    now = start
    while now < start + seconds:
        overload.observe(now, excess_ms)
        overload.candidate(now)
        now += every_s
    return now


def test_without_waiting_the_first_serves() -> None:
    overload = OverloadControl((7, 5, 2), 50)
    now = feed(overload, 0, 60, 10)
    assert overload.candidate(now) == 7


def test_one_slow_query_changes_nothing() -> None:
    overload = OverloadControl((7, 5), 50)
    now = feed(overload, 0, 5, 0)
    overload.observe(now, 500)
    assert overload.candidate(now) == 7


def test_lasting_excess_goes_down_the_ladder_step_by_step_to_its_end() -> None:
    overload = OverloadControl((7, 5, 2), 50)
    now = feed(overload, 0, 1, 200)
    assert overload.candidate(now) == 5
    now = feed(overload, now, 0.8, 200)
    assert overload.candidate(now) == 5  # the effect of the first step is waited for
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


def test_several_steps_back_take_a_calm_while_each() -> None:
    overload = OverloadControl((7, 5, 2), 50)
    now = feed(overload, 0, 10, 200)
    assert overload.candidate(now) == 2
    now = feed(overload, now, 14, 0)
    assert overload.candidate(now) == 5
    now = feed(overload, now, 11, 0)
    assert overload.candidate(now) == 7


def test_without_queries_the_excess_is_forgotten() -> None:
    overload = OverloadControl((7, 5), 50)
    now = feed(overload, 0, 3, 200)
    assert overload.excess_ms(now) > 100
    assert overload.excess_ms(now + 10) < 1
    assert overload.candidate(now + 10) == 5
    assert overload.candidate(now + 21) == 7


def test_queries_that_are_faster_than_expected_do_not_pay_for_slow_ones() -> None:
    overload = OverloadControl((7, 5), 50)
    now = 0.0
    for _ in range(200):
        overload.observe(now, -1000)
        overload.observe(now, 200)
        now += 0.05
    assert overload.candidate(now) == 5
