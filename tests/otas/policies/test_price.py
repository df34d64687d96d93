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


def test_steps_have_decreasing_utility_per_second() -> None:
    assert steps([1, 2, 4], [4, 6, 8]) == [(1, 4), (1, 2), (2, 2)]
    assert steps([1, 2, 4], [1, 6, 8]) == [(2, 6), (2, 2)]  # the first lies below the line to the second
    assert steps([1, 2, 4], [4, 4, 3]) == [(1, 4)]  # the others have no higher utility
    assert steps([2, 2, 1], [5, 6, 7]) == [(1, 7)]  # a larger γ may be faster
    assert steps([1, 2], [0, 0]) == []


def priced(*earnings: tuple[float, ...]) -> PriceOfTime:
    price = PriceOfTime(SAMPLE_S)
    for each in earnings:
        price.add(np.array(each))
    return price


def test_the_price_is_the_utility_of_the_last_second() -> None:
    price = priced((4, 6, 8))  # 4 a second, then 2, then 1
    assert [price.at(seconds) for seconds in (0.5, 1.0, 1.5, 2.5, 3.9, 4.0, 9.0)] == [4, 2, 2, 1, 1, 0, 0]


def test_queries_of_high_utility_raise_the_price() -> None:
    price = priced((40, 60, 80), (4, 6, 8))
    assert price.at(1.9) == 10  # all of it for the query of high utility
    assert price.at(2.1) == 4
    assert price.at(4.1) == 0


def test_only_recent_queries_count() -> None:
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
def test_the_price_is_the_dual_of_the_linear_programme(earnings: list[tuple[int, ...]], seconds: float) -> None:
    """The value of the time at this price plus the surplus of the choices equals the linear programme's optimum."""
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
    def test_the_rate_is_that_of_the_last_window(self) -> None:
        rate = ArrivalRate(window_s=1.0)
        for i in range(30):
            rate.add(i / 10)
        assert rate.at(2.95) == 10
        assert rate.at(3.55) == pytest.approx(4)
        assert rate.at(9.0) == 0

    def test_the_first_window_is_shorter(self) -> None:
        rate = ArrivalRate(window_s=1.0)
        assert (rate.at(5.0), rate.first) == (0.0, None)
        rate.add(5.0)
        rate.add(5.1)
        assert rate.at(5.2) == pytest.approx(10)
        assert rate.first == 5.0

    def test_two_simultaneous_arrivals_do_not_give_an_infinite_rate(self) -> None:
        rate = ArrivalRate(window_s=1.0)
        rate.add(5.0)
        rate.add(5.0)
        assert rate.at(5.0) == 20
