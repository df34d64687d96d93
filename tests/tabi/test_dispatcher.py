"""Equation 4, and the draws."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidal.tabi.equations import draw, request_key, reroute_probability

SHARES = st.floats(0, 1)
CUTOFFS = st.floats(0.01, 0.99)
SLOPES = st.floats(0.1, 100)


def test_equation_by_hand() -> None:
    # c = 0.9, k = 10. Midway between c and 1 the norm is 0; at 1 it is 1/2, at 0.975 it is 1/4.
    got = reroute_probability([0.5, 0.9, 0.95, 0.975, 1.0], 0.9, 10)
    assert got == pytest.approx([1, 1, 0.5, 1 / (1 + math.exp(2.5)), 1 / (1 + math.exp(5))])
    # Just above c the sigmoid begins below 1: the step that the paper's Figure 6 shows.
    assert reroute_probability(0.9 + 1e-12, 0.9, 10) == pytest.approx(1 / (1 + math.exp(-5)))


def test_a_number_gives_a_number_and_any_shape_its_own() -> None:
    assert isinstance(reroute_probability(0.95, 0.9, 10), float)
    assert reroute_probability(np.full((2, 3), 0.95), 0.9, 10).shape == (2, 3)


def test_a_steep_slope_is_a_step() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reroute_probability([0.7, 0.84, 0.86, 1.0], 0.7, 1e6).tolist() == [1, 1, 0, 0]


def test_what_is_not_a_number_is_not_sure() -> None:
    assert reroute_probability(math.nan, 0.5, 10) == 1


@given(SHARES, SHARES, CUTOFFS, SLOPES)
def test_the_surer_the_rarer(one: float, other: float, cutoff: float, slope: float) -> None:
    unsure, sure = (reroute_probability(each, cutoff, slope) for each in sorted([one, other]))
    assert 0 <= sure <= unsure <= 1


@given(SHARES, CUTOFFS, CUTOFFS, SLOPES)
def test_a_larger_cutoff_returns_fewer_early(confidence: float, one: float, other: float, slope: float) -> None:
    low, high = sorted([one, other])
    assert reroute_probability(confidence, low, slope) <= reroute_probability(confidence, high, slope) + 1e-12


@given(st.floats(0.001, 0.999), CUTOFFS, SLOPES)
def test_the_sigmoid_is_symmetric_between_the_cutoff_and_one(place: float, cutoff: float, slope: float) -> None:
    distance = place * (1 - cutoff)
    low, high = (reroute_probability(each, cutoff, slope) for each in (cutoff + distance, 1 - distance))
    assert low + high == pytest.approx(1, abs=1e-6)


def test_draws_depend_on_nothing_but_their_arguments() -> None:
    key = request_key("request-1", [])
    assert draw(1, key, 0, 0) == draw(1, key, 0, 0)
    others = [draw(2, key, 0, 0), draw(1, key, 1, 0), draw(1, key, 0, 1), draw(1, request_key("request-2", []), 0, 0)]
    assert len({draw(1, key, 0, 0), *others}) == 5


def test_draws_are_the_same_in_every_release() -> None:
    assert draw(3, request_key("request", []), 1, 0) == 0.7900701688954435
    assert draw(3, request_key("", [b"good", b"film"]), 0, 1) == 0.48695968204022666


@given(st.integers(0, 2**31), st.binary(max_size=20), st.integers(0, 64), st.integers(0, 9))
def test_draws_are_in_range(version: int, key: bytes, row: int, level: int) -> None:
    assert 0 <= draw(version, key, row, level) < 1


@pytest.mark.parametrize("vary", ["version", "key", "row", "level"])
def test_draws_are_even_and_independent_of_each_other(vary: str) -> None:
    def one(number: int) -> float:
        varied = {"version": 3, "key": 3, "row": 3, "level": 3, vary: number}
        return draw(varied["version"], b"%d" % varied["key"], varied["row"], varied["level"])

    numbers = np.array([one(number) for number in range(20_000)])
    # 20 classes of 1,000: chi-square with 19 degrees of freedom stays below 50 in all but 1 of 7,000 cases.
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 50
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.03


def test_keys_tell_requests_apart() -> None:
    keys = [
        request_key("ab", []),
        request_key("", [b"ab"]),
        request_key("", [b"a", b"b"]),
        request_key("", [b"", b"ab"]),
        request_key("", [b"ab", b""]),
    ]
    assert len(set(keys)) == len(keys)
    assert request_key("ab", [b"this"]) == request_key("ab", [b"that"])
