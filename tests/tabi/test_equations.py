"""The equations of a cascade: Eq. 2, 3, 4 and 6, the confidence of a regression, and the draws."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tidal.serving.softmax import softmax
from tidal.tabi.equations import combine, confidence, draw, request_key, reroute_probability
from tidal.tabi.manifest import Calibration, RegressionCalibration

LOGITS = arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(2, 6)), elements=st.floats(-50, 50))
OUTPUTS = arrays(np.float64, st.tuples(st.integers(1, 4), st.just(3), st.integers(2, 5)), elements=st.floats(-9, 9))
SHARES = st.floats(0, 1)
CUTOFFS = st.floats(0.01, 0.99)
SLOPES = st.floats(0.1, 100)


def test_softmax_by_hand() -> None:
    # e^(ln 8) = 8 of 8 + 1 + 1.
    assert softmax([[math.log(8), 0, 0], [0, 0, 0]]) == pytest.approx(np.array([[0.8, 0.1, 0.1], [1 / 3] * 3]))
    assert softmax([math.log(3), 0]) == pytest.approx([0.75, 0.25])


def test_confidence_by_hand() -> None:
    # Halved by T, 2 ln 3 is ln 3: 3 of 3 + 1; at T = 1 it is 9 of 9 + 1.
    logits = [[2 * math.log(3), 0], [0, 2 * math.log(3)], [1, 1]]
    assert confidence(Calibration(temperature=2), logits) == pytest.approx([0.75, 0.75, 0.5])
    assert confidence(Calibration(temperature=1), logits) == pytest.approx([0.9, 0.9, 0.5])


def test_large_logits_do_not_overflow() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert softmax([[1e4, 0], [-1e4, -1e4], [3e38, -3e38]], 0.01).tolist() == [[1, 0], [0.5, 0.5], [1, 0]]


@given(LOGITS, st.floats(0.05, 20))
def test_softmax_is_a_distribution_that_keeps_the_order(logits: np.ndarray, temperature: float) -> None:
    got = softmax(logits, temperature)
    assert got.dtype == np.float64
    assert ((got >= 0) & (got <= 1)).all()
    assert got.sum(axis=1) == pytest.approx(np.ones(len(logits)))
    order = np.argsort(logits, axis=1)
    assert (np.diff(np.take_along_axis(got, order, axis=1), axis=1) >= 0).all()
    assert softmax(logits + 1000, temperature) == pytest.approx(got, abs=1e-9)
    assert softmax(logits[:, ::-1], temperature)[:, ::-1] == pytest.approx(got)


@given(LOGITS, st.floats(0.1, 10), st.floats(0.1, 10))
def test_confidence_falls_with_the_temperature(logits: np.ndarray, one: float, other: float) -> None:
    low, high = sorted([one, other])
    cold = confidence(Calibration(temperature=low), logits)
    warm = confidence(Calibration(temperature=high), logits)
    assert (warm <= cold + 1e-12).all()
    assert (warm >= 1 / logits.shape[1] - 1e-12).all()


@given(LOGITS, st.floats(0.1, 10))
def test_a_query_has_the_same_result_alone_and_in_a_batch(logits: np.ndarray, temperature: float) -> None:
    calibration = Calibration(temperature=temperature)
    together, probabilities = confidence(calibration, logits), softmax(logits, temperature)
    for row, alone in enumerate(logits):
        assert confidence(calibration, alone) == together[row]
        assert softmax(alone, temperature).tolist() == probabilities[row].tolist()


def regression(**changes: object) -> Calibration:
    fields: dict[str, object] = {
        "tolerance": 1.0,
        "values": (0.0, 10.0),
        "deviations": (1.0, 3.0),
        "expected": (0.0, 1.0),
        "observed": (0.0, 1.0),
    }
    return Calibration(regression=RegressionCalibration.model_validate({**fields, **changes}))


def test_a_regressions_confidence_by_hand() -> None:
    # Deviations 1, 2 (midway between 1 and 3) and 3 (beyond the last value): the normal distribution holds 68.27 %,
    # 38.29 % and 26.11 % within 1, 1/2 and 1/3 of them.
    got = confidence(regression(), [[0.0], [5.0], [99.0]])
    assert got == pytest.approx([0.682689, 0.382925, 0.261117], abs=1e-6)
    assert confidence(regression(), [5.0]) == pytest.approx(0.382925, abs=1e-6)


def test_a_regressions_recalibration_by_hand() -> None:
    # Cumulative probabilities at one deviation: 0.158655 and 0.841345. The lower half is stretched from 0.5 to 0.8,
    # the upper squeezed: 0.158655 x 1.6 = 0.253849, 0.8 + 0.341345 x 0.4 = 0.936538.
    got = confidence(regression(expected=(0.0, 0.5, 1.0), observed=(0.0, 0.8, 1.0)), [[0.0]])
    assert got == pytest.approx([0.936538 - 0.253849], abs=1e-6)


@given(st.floats(-20, 20), st.floats(0.01, 10), st.floats(0.01, 10))
def test_a_regressions_confidence_rises_with_the_tolerance(value: float, one: float, other: float) -> None:
    low, high = sorted([one, other])
    strict, lenient = (float(confidence(regression(tolerance=tolerance), [value])) for tolerance in (low, high))
    assert 0 <= strict <= lenient <= 1


def test_rerouting_by_hand() -> None:
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


def test_a_confidence_that_is_not_a_number_escalates() -> None:
    assert reroute_probability(math.nan, 0.5, 10) == 1


@given(SHARES, SHARES, CUTOFFS, SLOPES)
def test_rerouting_falls_with_the_confidence(one: float, other: float, cutoff: float, slope: float) -> None:
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


def test_different_requests_have_different_keys() -> None:
    keys = [
        request_key("ab", []),
        request_key("", [b"ab"]),
        request_key("", [b"a", b"b"]),
        request_key("", [b"", b"ab"]),
        request_key("", [b"ab", b""]),
    ]
    assert len(set(keys)) == len(keys)
    assert request_key("ab", [b"this"]) == request_key("ab", [b"that"])


def normalised(numbers: list[float]) -> list[float]:
    return [number / sum(numbers) for number in numbers]


def test_combining_by_hand() -> None:
    # w = 0.6 for the large model: 0.6 x 0.2 + 0.4 x 0.7 = 0.4, 0.6 x 0.8 + 0.4 x 0.3 = 0.6.
    assert combine([0.4, 0.6], [[0.7, 0.3], [0.2, 0.8]]) == pytest.approx([0.4, 0.6])
    assert combine([0.5, 0.2, 0.3], [[1, 0], [0, 1], [0.5, 0.5]]) == pytest.approx([0.65, 0.35])
    assert combine([1], [[0.7, 0.3]]).tolist() == [0.7, 0.3]


def test_a_regressions_values_are_averaged() -> None:
    assert combine([0.25, 0.75], [[2.0], [4.0]]) == pytest.approx([3.5])


def test_a_level_without_a_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        combine([0.5, 0.5], [[1.0, 0.0]])


@given(OUTPUTS, st.lists(st.floats(0.01, 1), min_size=4, max_size=4))
def test_the_ensemble_is_a_distribution_between_its_members(logits: np.ndarray, numbers: list[float]) -> None:
    members = [softmax(each) for each in logits]
    weights = normalised(numbers[: len(members)])
    got = combine(weights, members)
    assert got.sum(axis=1) == pytest.approx(np.ones(3))
    assert (got >= np.min(members, axis=0) - 1e-12).all()
    assert (got <= np.max(members, axis=0) + 1e-12).all()
    assert combine(weights[::-1], members[::-1]) == pytest.approx(got)
    for row in range(3):
        assert combine(weights, [member[row] for member in members]).tolist() == got[row].tolist()
