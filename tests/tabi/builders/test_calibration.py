from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.tabi.equations import confidence
from tidal.tabi.manifest import Calibration
from tidal_builders.tabi.calibration import (
    bin_of,
    calibrate,
    calibration_error,
    fit_regression,
    fit_temperature,
    reliability,
)
from tidal_builders.tabi.data import CALIBRATION, REPORT, SELECTION, LabelledData


def _drawn(generator: np.random.Generator, logits: np.ndarray, temperature: float) -> np.ndarray:
    """Labels whose distribution is the softmax of the logits at a temperature."""
    return (logits / temperature + generator.gumbel(size=logits.shape)).argmax(axis=1)


def _loss(logits: np.ndarray, truth: np.ndarray, temperature: float) -> float:
    scaled = logits.astype(np.float64) / temperature
    of_truth = scaled[np.arange(len(truth)), truth]
    return float(np.log(np.exp(scaled - of_truth[:, None]).sum(axis=1)).mean())


@pytest.mark.parametrize(("true", "classes"), [(0.4, 2), (1.0, 3), (2.5, 2), (6.0, 7)])
def test_the_temperature_is_the_best_of_a_fine_grid(true: float, classes: int) -> None:
    generator = np.random.default_rng(classes)
    logits = generator.normal(scale=4, size=(400, classes)).astype(np.float32)
    truth = _drawn(generator, logits, true)
    grid = np.geomspace(0.05, 20, 1200)
    best = grid[np.argmin([_loss(logits, truth, each) for each in grid])]
    fitted = fit_temperature(logits, truth)
    assert fitted == pytest.approx(best, rel=0.006)
    assert _loss(logits, truth, fitted) <= min(_loss(logits, truth, each) for each in (best, true, 1.0)) + 1e-9


def test_the_temperature_that_labels_were_drawn_at_is_recovered() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(scale=5, size=(30_000, 4)).astype(np.float32)
    assert fit_temperature(logits, _drawn(generator, logits, 3.0)) == pytest.approx(3.0, rel=0.05)


def test_a_level_without_mistakes_gets_a_bounded_temperature() -> None:
    logits = np.array([[900.0, -900.0], [-900.0, 900.0]], np.float32)
    assert 0.05 <= fit_temperature(logits, np.array([0, 1])) <= 20
    assert fit_temperature(logits, np.array([1, 0])) == pytest.approx(20, rel=1e-3)


def test_bins_include_their_upper_bound() -> None:
    assert bin_of(np.array([0.0, 0.01, 1 / 15, 0.07, 0.2, 0.6, 1.0])).tolist() == [0, 0, 0, 1, 2, 8, 14]


def test_the_calibration_error_of_an_example_by_hand() -> None:
    # Bins a fifteenth wide: two queries in the last, one right; one right at 0.58, one wrong at 0.62, each in its own.
    bins = reliability(np.array([0.95, 0.97, 0.58, 0.62]), np.array([True, False, True, False]))
    assert [(each.count, each.accuracy) for each in bins] == [(1, 1.0), (1, 0.0), (2, 0.5)]
    assert calibration_error(bins) == pytest.approx((2 * (0.96 - 0.5) + (1 - 0.58) + 0.62) / 4)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
@settings(deadline=None)
def test_the_calibration_error_as_defined(queries: list[tuple[float, bool]]) -> None:
    expected = 0.0
    for lower in range(15):
        mine = [(sure, right) for sure, right in queries if max(math.ceil(sure * 15), 1) == lower + 1]
        if mine:
            sure, right = (sum(each[i] for each in mine) / len(mine) for i in (0, 1))
            expected += len(mine) / len(queries) * abs(sure - right)
    found = calibration_error(reliability(np.array([q[0] for q in queries]), np.array([q[1] for q in queries])))
    assert found == pytest.approx(expected, abs=1e-12)


def _parted(generator: np.random.Generator, truth: np.ndarray) -> LabelledData:
    return LabelledData((("text",),) * len(truth), truth, generator.integers(0, 3, len(truth)).astype(np.int8))


def test_an_overconfident_level_is_calibrated_on_one_part_and_measured_on_another() -> None:
    generator = np.random.default_rng(2)
    logits = generator.normal(scale=6, size=(9000, 3)).astype(np.float32)
    data = _parted(generator, _drawn(generator, logits, 4.0))
    found = calibrate(logits, data, None)
    fit, report = data.part == CALIBRATION, data.part == REPORT
    assert found.calibration.temperature == fit_temperature(logits[fit], data.truth[fit])
    assert found.calibration.ece_before is not None
    assert found.calibration.ece_after is not None
    assert found.calibration.ece_before > 0.1
    assert found.calibration.ece_after < 0.03
    sure = confidence(Calibration(temperature=found.calibration.temperature), logits[report])
    right = logits[report].argmax(axis=1) == data.truth[report]
    assert found.calibration.ece_after == calibration_error(reliability(sure, right))
    assert sum(each.count for each in found.after) == report.sum()

    changed = data.truth.copy()
    changed[~fit] = 0
    other = calibrate(logits, LabelledData(data.texts, changed, data.part), None).calibration
    assert other.temperature == found.calibration.temperature
    assert other.ece_after != found.calibration.ece_after
    only_selection = np.where(data.part == SELECTION, 0, data.truth)
    assert calibrate(logits, LabelledData(data.texts, only_selection, data.part), None).calibration == found.calibration


def test_the_confidence_of_a_regression_follows_the_noise() -> None:
    generator = np.random.default_rng(3)
    values = generator.uniform(0, 10, 20_000)
    truth = values + generator.normal(size=len(values)) * (0.2 + 0.1 * values)
    found = fit_regression(values, truth, tolerance=0.5)
    assert np.allclose(found.deviations, 0.2 + 0.1 * np.array(found.values), rtol=0.06)
    fresh = generator.uniform(0, 10, 20_000)
    right = np.abs(generator.normal(size=len(fresh)) * (0.2 + 0.1 * fresh)) <= 0.5
    sure = confidence(Calibration(regression=found), fresh[:, None].astype(np.float32))
    assert calibration_error(reliability(sure, right)) < 0.03
    assert sure[fresh < 1].mean() > 0.9
    assert sure[fresh > 9].mean() < 0.45


def test_recalibration_repairs_a_forecast_of_the_wrong_shape() -> None:
    # Mostly tiny errors and some large ones: a normal forecast of that deviation is underconfident.
    generator = np.random.default_rng(4)
    values = generator.normal(size=12_000)
    truth = values + generator.normal(size=len(values)) * generator.choice([0.05, 1.0], len(values), p=(0.9, 0.1))
    data = _parted(generator, truth)
    found = calibrate(values[:, None].astype(np.float32), data, 0.2).calibration
    assert found.ece_before is not None
    assert found.ece_after is not None
    assert found.ece_after < 0.05 < found.ece_before
    assert found.temperature == 1


@given(
    st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=1, max_size=70),
    st.sampled_from([0.01, 0.5, 30.0]),
)
@settings(deadline=None)
def test_a_regression_calibration_is_always_a_distribution(rows: list[tuple[int, int]], tolerance: float) -> None:
    values, truth = (np.array([row[i] for row in rows], np.float64) for i in (0, 1))
    found = fit_regression(values, truth, tolerance)
    assert list(found.values) == sorted(set(found.values))
    assert len(found.deviations) == len(found.values)
    assert all(each > 0 for each in found.deviations)
    assert (found.expected[0], found.expected[-1]) == (found.observed[0], found.observed[-1]) == (0, 1)
    assert list(found.expected) == sorted(set(found.expected))
    assert list(found.observed) == sorted(found.observed)
    sure = confidence(Calibration(regression=found), values[:, None])
    assert ((sure >= 0) & (sure <= 1)).all()
