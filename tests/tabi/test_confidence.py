"""Equations 2 and 3, and a regression's confidence."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tidal.serving.softmax import softmax
from tidal.tabi.equations import confidence
from tidal.tabi.manifest import Calibration, RegressionCalibration

LOGITS = arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(2, 6)), elements=st.floats(-50, 50))


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
def test_a_query_alone_gets_exactly_what_it_gets_among_others(logits: np.ndarray, temperature: float) -> None:
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
