"""How sure a level may be of its answers: temperatures, calibrated regression, and how far off they still are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression
from scipy.special import ndtr

from tidal.tabi.equations import confidence
from tidal.tabi.manifest import Calibration, RegressionCalibration
from tidal_builders.tabi.outputs import CALIBRATION, REPORT, Data
from tidal_builders.tabi.report import Bin
from tidal_builders.tabi.temperature import ECE_BINS, bin_of, choose_temperature

Floats = npt.NDArray[np.float64]

# A regression's deviation is estimated on so many queries at a time, at least, and in so many places at most.
_QUERIES_A_BIN, _MOST_BINS = 20, 10
# Likewise what its cumulative probabilities are recalibrated at.
_QUERIES_A_KNOT, _MOST_KNOTS = 5, 99


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A level's calibration and its reliability on the report part, before (T = 1) and after."""

    calibration: Calibration
    before: tuple[Bin, ...]
    after: tuple[Bin, ...]


def calibrate(logits: npt.NDArray[np.float32], data: Data, tolerance: float | None) -> Calibrated:
    """Fit a level's calibration on the calibration part and measure it on the report part.

    Args:
        logits: on all queries of the data, [n, classes]; of a regression [n, 1].
        data: the queries.
        tolerance: how far a regression's value may lie from the truth and be right; None for a classification.

    Returns:
        The calibration; for a regression, "before" is the normal forecast without recalibration.
    """
    fit, report = data.part == CALIBRATION, data.part == REPORT
    if tolerance is None:
        choice = choose_temperature(logits[fit], data.truth[fit])
        before, after = Calibration(), Calibration(temperature=choice.temperature, choice=choice)
        right = logits[report].argmax(axis=1) == data.truth[report]
    else:
        forecast = fit_regression(logits[fit, 0].astype(np.float64), data.truth[fit].astype(np.float64), tolerance)
        plain = forecast.model_copy(update={"expected": (0.0, 1.0), "observed": (0.0, 1.0)})
        before, after = Calibration(regression=plain), Calibration(regression=forecast)
        right = np.abs(logits[report, 0] - data.truth[report]) <= tolerance
    bins = [reliability(confidence(each, logits[report]), right) for each in (before, after)]
    errors = {"ece_before": calibration_error(bins[0]), "ece_after": calibration_error(bins[1])}
    return Calibrated(after.model_copy(update=errors), *bins)


def fit_regression(values: Floats, truth: Floats, tolerance: float) -> RegressionCalibration:
    """Recalibrated normal forecast around a regression's values (Kuleshov et al. 2018, Algorithm 1).

    The forecast's deviation is the root mean square of the residuals over quantile bins of the value. Its cumulative
    probabilities at the truth are then mapped to how often they occur, by isotonic regression through quantiles.

    Args:
        values: what the level answers, [n].
        truth: what is right, [n].
        tolerance: distance from the truth that counts as right.
    """
    order = np.argsort(values, kind="stable")
    pieces = np.array_split(order, max(1, min(_MOST_BINS, len(order) // _QUERIES_A_BIN)))
    residuals = truth - values
    centres, group = np.unique([values[piece].mean() for piece in pieces], return_inverse=True)
    joined = [np.concatenate([pieces[i] for i in np.flatnonzero(group == k)]) for k in range(len(centres))]
    # Far below the tolerance all deviations say the same, and 0 would be no distribution.
    deviations = np.array([max(float(np.sqrt(np.mean(residuals[rows] ** 2))), 1e-3 * tolerance) for rows in joined])
    expected, observed = _recalibration(ndtr(residuals / np.interp(values, centres, deviations)))
    return RegressionCalibration(
        tolerance=tolerance,
        values=tuple(centres.tolist()),
        deviations=tuple(deviations.tolist()),
        expected=tuple(expected.tolist()),
        observed=tuple(observed.tolist()),
    )


def _recalibration(cumulative: Floats) -> tuple[Floats, Floats]:
    """From the forecast's cumulative probability to the share of the truths that lie below it, both from 0 to 1."""
    count = max(1, min(_MOST_KNOTS, len(cumulative) // _QUERIES_A_KNOT))
    shares = np.arange(1, count + 1) / (count + 1)
    knots = np.quantile(cumulative, shares, method="hazen")
    # Truths far outside the forecast have probabilities of exactly 0 or 1, and equal ones give equal knots.
    inside = (knots > 0) & (knots < 1)
    expected, group = np.unique(knots[inside], return_inverse=True)
    merged = np.bincount(group, minlength=len(expected))
    observed = np.bincount(group, weights=shares[inside], minlength=len(expected)) / merged
    if len(expected):
        observed = isotonic_regression(observed, weights=merged).x
    return np.concatenate([[0.0], expected, [1.0]]), np.concatenate([[0.0], observed, [1.0]])


def reliability(confidences: Floats, right: npt.NDArray[np.bool_]) -> tuple[Bin, ...]:
    """Queries in 15 equal bins of confidence, (0, 1/15] first; empty bins are left out.

    Args:
        confidences: [n], 0 to 1.
        right: whether each answer is right, [n].
    """
    index = bin_of(confidences)
    count = np.bincount(index, minlength=ECE_BINS)
    sums = np.bincount(index, weights=confidences, minlength=ECE_BINS)
    rights = np.bincount(index, weights=right, minlength=ECE_BINS)
    return tuple(
        Bin(confidence=float(sums[i] / count[i]), accuracy=float(rights[i] / count[i]), count=int(count[i]))
        for i in np.flatnonzero(count)
    )


def calibration_error(bins: tuple[Bin, ...]) -> float:
    """Expected calibration error (Guo et al. 2017, Eq. 5): mean distance of confidence and accuracy over bins."""
    total = sum(each.count for each in bins)
    return sum(each.count * abs(each.confidence - each.accuracy) for each in bins) / total
