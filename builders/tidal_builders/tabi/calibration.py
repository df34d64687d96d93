"""Calibration of a level's confidence: the softmax temperature (T of Tabi Eq. 3), a regression's forecast, the ECE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression, minimize_scalar
from scipy.special import log_softmax, ndtr

from tidal.serving.softmax import softmax
from tidal.tabi.equations import confidence
from tidal.tabi.manifest import Calibration, RegressionCalibration, TemperatureChoice
from tidal_builders.tabi.data import CALIBRATION, REPORT, LabelledData
from tidal_builders.tabi.search_report import Bin

Floats = npt.NDArray[np.float64]

ECE_BINS = 15
# A temperature outside these bounds would come from queries without information, for instance if the model answers
# all of them correctly.
_MIN_T, _MAX_T = 0.05, 20.0
# Below this number of queries no temperature is fitted: the standard errors that decide would be guesses themselves.
_MIN_QUERIES = 50
_FOLDS = 10
# Standard errors that an improvement has to exceed: 5 % of those that are noise alone do (one-sided, normal).
_BEYOND_NOISE = 1.645
_RESAMPLES = 400
# A regression's deviation is estimated in at most so many bins, each of at least so many queries.
_QUERIES_PER_BIN, _MAX_BINS = 20, 10
# The same for the knots at which its cumulative probabilities are recalibrated.
_QUERIES_PER_KNOT, _MAX_KNOTS = 5, 99


@dataclass(frozen=True, slots=True)
class CalibratedLevel:
    """A level's calibration and its reliability on the report part, before (T = 1) and after."""

    calibration: Calibration
    before: tuple[Bin, ...]
    after: tuple[Bin, ...]


def calibrate(logits: npt.NDArray[np.float32], data: LabelledData, tolerance: float | None) -> CalibratedLevel:
    """Fit a level's calibration on the calibration part and measure it on the report part.

    Args:
        logits: Logits on all queries of the data, [n, classes]; for a regression its values, [n, 1].
        data: Labelled queries, n.
        tolerance: Distance from the truth within which a regression's value is right; None for a classification.

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
    return CalibratedLevel(after.model_copy(update=errors), *bins)


def fit_temperature(logits: npt.NDArray[np.float32], truth: npt.NDArray[np.generic]) -> float:
    """Return the temperature with the lowest negative log-likelihood of the truth, 0.05 to 20.

    Args:
        logits: Logits, [n, classes].
        truth: Index of the correct class, [n].
    """

    def loss(log_temperature: float) -> float:
        return float(_negative_log_likelihood(logits, truth, np.exp(log_temperature)).mean())

    # Convex in 1/T, so there is one minimum in log T too.
    found = minimize_scalar(loss, bounds=(np.log(_MIN_T), np.log(_MAX_T)), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))


def choose_temperature(logits: npt.NDArray[np.float32], truth: npt.NDArray[np.generic]) -> TemperatureChoice:
    """Fit a temperature, and keep it if cross-validation shows that it is better than T = 1.

    Each query is evaluated with a temperature that was fitted without it. Both the negative log-likelihood and the
    expected calibration error have to fall by more than 1.645 standard errors; those of the first are from the
    queries' own differences, those of the second from resampled queries.

    Args:
        logits: Logits, [n, classes].
        truth: Index of the correct class, [n].
    """
    count = len(truth)
    if count < _MIN_QUERIES:
        return TemperatureChoice(queries=count, kept=False)
    fitted = fit_temperature(logits, truth)
    temperatures = np.empty(count)
    for fold in np.array_split(np.random.default_rng(0).permutation(count), _FOLDS):
        others = np.setdiff1d(np.arange(count), fold)
        temperatures[fold] = fit_temperature(logits[others], truth[others])
    falls = _negative_log_likelihood(logits, truth, 1.0) - _negative_log_likelihood(logits, truth, temperatures)
    right = logits.argmax(axis=1) == truth
    before, after = (_excess(logits, right, each) for each in (np.ones(count), temperatures))
    resamples = np.random.default_rng(1).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    resampled = (np.abs(resamples @ before).sum(axis=1) - np.abs(resamples @ after).sum(axis=1)) / count
    nll_gain, nll_error = float(falls.mean()), float(falls.std(ddof=1) / np.sqrt(count))
    ece_gain = float((np.abs(before.sum(axis=0)).sum() - np.abs(after.sum(axis=0)).sum()) / count)
    ece_error = float(resampled.std(ddof=1))
    # At a bound the likelihood has no minimum inside: the queries do not determine the temperature.
    bounded = 1.01 * _MIN_T < fitted < 0.99 * _MAX_T
    better = nll_gain > _BEYOND_NOISE * nll_error and ece_gain > _BEYOND_NOISE * ece_error
    return TemperatureChoice(
        queries=count,
        kept=bounded and better,
        fitted=fitted,
        nll_gain=nll_gain,
        nll_error=nll_error,
        ece_gain=ece_gain,
        ece_error=ece_error,
    )


def fit_regression(values: Floats, truth: Floats, tolerance: float) -> RegressionCalibration:
    """Fit a recalibrated normal forecast around a regression's values (Kuleshov et al. 2018, Algorithm 1).

    The forecast's deviation is the root mean square of the residuals over quantile bins of the value. Its cumulative
    probabilities at the truth are then mapped to how often they occur, by isotonic regression through quantiles.

    Args:
        values: Answers of the level, [n].
        truth: Correct values, [n].
        tolerance: Distance from the truth within which a value is right.
    """
    order = np.argsort(values, kind="stable")
    pieces = np.array_split(order, max(1, min(_MAX_BINS, len(order) // _QUERIES_PER_BIN)))
    residuals = truth - values
    centres, group = np.unique([values[piece].mean() for piece in pieces], return_inverse=True)
    joined = [np.concatenate([pieces[i] for i in np.flatnonzero(group == k)]) for k in range(len(centres))]
    # Far below the tolerance all deviations give the same confidence, and 0 is not a valid deviation.
    deviations = np.array([max(float(np.sqrt(np.mean(residuals[rows] ** 2))), 1e-3 * tolerance) for rows in joined])
    expected, observed = _recalibration(ndtr(residuals / np.interp(values, centres, deviations)))
    return RegressionCalibration(
        tolerance=tolerance,
        values=tuple(centres.tolist()),
        deviations=tuple(deviations.tolist()),
        expected=tuple(expected.tolist()),
        observed=tuple(observed.tolist()),
    )


def reliability(confidences: Floats, right: npt.NDArray[np.bool_]) -> tuple[Bin, ...]:
    """Return the queries in 15 equal bins of confidence, (0, 1/15] first; empty bins are left out.

    Args:
        confidences: Confidence of each answer, in [0, 1], [n].
        right: Whether each answer is right, [n].
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
    """Return the expected calibration error (Guo et al. 2017, Eq. 5): mean distance of confidence and accuracy.

    Args:
        bins: Bins of `reliability`.
    """
    total = sum(each.count for each in bins)
    return sum(each.count * abs(each.confidence - each.accuracy) for each in bins) / total


def bin_of(confidences: Floats) -> npt.NDArray[np.int64]:
    """Return the bin of each confidence, among 15 equal ones: (0, 1/15] is number 0.

    Args:
        confidences: Confidences in [0, 1], [n].
    """
    return np.asarray(np.clip(np.ceil(confidences * ECE_BINS) - 1, 0, ECE_BINS - 1), np.int64)


def _recalibration(cumulative: Floats) -> tuple[Floats, Floats]:
    """Map the forecast's cumulative probability to the share of truths below it, both from 0 to 1."""
    count = max(1, min(_MAX_KNOTS, len(cumulative) // _QUERIES_PER_KNOT))
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


def _negative_log_likelihood(
    logits: npt.NDArray[np.float32], truth: npt.NDArray[np.generic], temperature: float | Floats
) -> Floats:
    """Return the negative log-likelihood of each query's truth, [n]."""
    scaled = logits.astype(np.float64) / np.reshape(temperature, (-1, 1))
    return -np.asarray(log_softmax(scaled, axis=1)[np.arange(len(truth)), truth], np.float64)


def _excess(logits: npt.NDArray[np.float32], right: npt.NDArray[np.bool_], temperatures: Floats) -> Floats:
    """Return each query's confidence minus whether it is right, in the column of its bin, [n, bins]."""
    confidences = softmax(logits / temperatures[:, None]).max(axis=1)
    excess = np.zeros((len(right), ECE_BINS))
    excess[np.arange(len(right)), bin_of(confidences)] = confidences - right
    return excess
