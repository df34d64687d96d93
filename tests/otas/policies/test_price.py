"""The price of time, and the arrival rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from tidal.otas.policies.price import PriceOfTime, steps
from tidal.otas.policies.rate import ArrivalRate

SAMPLE_S = np.array([1.0, 2.0, 4.0])


def test_steps_earn_less_and_less_per_second() -> None:
    assert steps([1, 2, 4], [4, 6, 8]) == [(1, 4), (1, 2), (2, 2)]
    assert steps([1, 2, 4], [1, 6, 8]) == [(2, 6), (2, 2)]  # the first lies below the line to the second
    assert steps([1, 2, 4], [4, 4, 3]) == [(1, 4)]  # the others earn no more
    assert steps([2, 2, 1], [5, 6, 7]) == [(1, 7)]  # what is quicker need not be what has the smaller γ
    assert steps([1, 2], [0, 0]) == []


def priced(*earnings: tuple[float, ...]) -> PriceOfTime:
    price = PriceOfTime(SAMPLE_S)
    for each in earnings:
        price.add(np.array(each))
    return price


def test_the_price_is_what_the_last_second_earns() -> None:
    price = priced((4, 6, 8))  # 4 a second, then 2, then 1
    assert [price.at(seconds) for seconds in (0.5, 1.0, 1.5, 2.5, 3.9, 4.0, 9.0)] == [4, 2, 2, 1, 1, 0, 0]


def test_dear_queries_push_cheap_ones_out() -> None:
    price = priced((40, 60, 80), (4, 6, 8))
    assert price.at(1.9) == 10  # all of it for the dear one
    assert price.at(2.1) == 4
    assert price.at(4.1) == 0


def test_only_the_last_queries_count() -> None:
    price = PriceOfTime(SAMPLE_S, remembered=4, refresh=1)
    for _ in range(4):
        price.add(np.array([40.0, 60.0, 80.0]))
    assert price.at(0.5) == 40
    for _ in range(4):
        price.add(np.array([4.0, 6.0, 8.0]))
    assert price.at(0.5) == 4


def test_the_price_is_zero_without_queries_or_earnings() -> None:
    assert PriceOfTime(SAMPLE_S).at(0.0) == 0
    assert priced((0, 0, 0)).at(0.1) == 0


@given(st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=5), st.floats(0.1, 4.0))
@settings(max_examples=40, deadline=None)
def test_it_is_the_dual_of_sharing_the_time(earnings: list[tuple[int, ...]], seconds: float) -> None:
    """At the price, the value of the time and what choices earn beyond it add up to the linear programme's best."""
    number = len(earnings)
    choices = np.tile(np.eye(number), (3, 1)).reshape(3, number, number)
    found = linprog(
        -np.array(earnings, float).T.ravel(),
        A_ub=np.vstack([np.repeat(SAMPLE_S, number), choices.transpose(2, 0, 1).reshape(number, -1)]),
        b_ub=[seconds * number] + [1.0] * number,
    )
    price = priced(*earnings).at(seconds)
    surplus = sum(max(0.0, *(np.array(each) - price * SAMPLE_S)) for each in earnings)
    assert price * seconds * number + surplus == pytest.approx(-found.fun)


class TestArrivalRate:
    def test_it_counts_the_last_window(self) -> None:
        rate = ArrivalRate(window_s=1.0)
        for i in range(30):
            rate.add(i / 10)
        assert rate.at(2.95) == 10
        assert rate.at(3.55) == pytest.approx(4)
        assert rate.at(9.0) == 0

    def test_a_window_that_has_begun_is_shorter(self) -> None:
        rate = ArrivalRate(window_s=1.0)
        assert (rate.at(5.0), rate.first) == (0.0, None)
        rate.add(5.0)
        rate.add(5.1)
        assert rate.at(5.2) == pytest.approx(10)
        assert rate.first == 5.0

    def test_two_at_once_are_no_flood(self) -> None:
        rate = ArrivalRate(window_s=1.0)
        rate.add(5.0)
        rate.add(5.0)
        assert rate.at(5.0) == 20
