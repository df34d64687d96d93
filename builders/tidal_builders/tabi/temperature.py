"""The temperature of a level's softmax (T of Tabi Eq. 3), and whether the data shows that it is better than 1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from tidal.serving.softmax import softmax
from tidal.tabi.manifest import TemperatureChoice

Floats = npt.NDArray[np.float64]

ECE_BINS = 15
# A temperature outside these bounds would stand for queries that say nothing, for instance such as the model answers
# without a mistake.
_LEAST_T, _MOST_T = 0.05, 20.0
# Queries below which no temperature is tried: the standard errors that decide would be guesses themselves.
_LEAST_QUERIES = 50
_FOLDS = 10
# Standard errors that an improvement has to exceed: 5 % of those that are noise alone do (one-sided, normal).
_BEYOND_NOISE = 1.645
_RESAMPLES = 400


def fit_temperature(logits: npt.NDArray[np.float32], truth: npt.NDArray[np.generic]) -> float:
    """The temperature with the least negative log-likelihood of the truth, 0.05 to 20.

    Args:
        logits: [n, classes].
        truth: index of the right class, [n].
    """

    def loss(log_temperature: float) -> float:
        return float(_negative_log_likelihood(logits, truth, np.exp(log_temperature)).mean())

    # Convex in 1/T, so with one minimum in log T too.
    found = minimize_scalar(loss, bounds=(np.log(_LEAST_T), np.log(_MOST_T)), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))


def choose_temperature(logits: npt.NDArray[np.float32], truth: npt.NDArray[np.generic]) -> TemperatureChoice:
    """Fit a temperature, and keep it if cross-validation shows that it is better than T = 1.

    Each query is judged with a temperature that was fitted without it. Both the negative log-likelihood and the
    expected calibration error have to fall by more than 1.645 standard errors; those of the first are from the
    queries' own differences, those of the second from resampled queries.

    Args:
        logits: [n, classes].
        truth: index of the right class, [n].
    """
    count = len(truth)
    if count < _LEAST_QUERIES:
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
    # At a bound the likelihood has no minimum inside: the queries do not say what the temperature is.
    bounded = 1.01 * _LEAST_T < fitted < 0.99 * _MOST_T
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


def bin_of(confidences: Floats) -> npt.NDArray[np.int64]:
    """The bin of each confidence, of 15 equal ones: (0, 1/15] is number 0."""
    return np.asarray(np.clip(np.ceil(confidences * ECE_BINS) - 1, 0, ECE_BINS - 1), np.int64)


def _negative_log_likelihood(
    logits: npt.NDArray[np.float32], truth: npt.NDArray[np.generic], temperature: float | Floats
) -> Floats:
    """Of each query's truth, [n]."""
    scaled = logits.astype(np.float64) / np.reshape(temperature, (-1, 1))
    return -np.asarray(log_softmax(scaled, axis=1)[np.arange(len(truth)), truth], np.float64)


def _excess(logits: npt.NDArray[np.float32], right: npt.NDArray[np.bool_], temperatures: Floats) -> Floats:
    """By how much each query's confidence exceeds whether it is right, in the column of its bin, [n, bins]."""
    confidences = softmax(logits / temperatures[:, None]).max(axis=1)
    excess = np.zeros((len(right), ECE_BINS))
    excess[np.arange(len(right)), bin_of(confidences)] = confidences - right
    return excess
