"""How sure a level is of its answer (Tabi §4.1)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tidal.serving.softmax import softmax
from tidal.tabi.manifest import Calibration, RegressionCalibration

Floats = npt.NDArray[np.float64]


def confidence(calibration: Calibration, logits: npt.ArrayLike) -> Floats:
    """The probability that a level's answers are right, Eq. 3: con(y).

    Args:
        calibration: the level's.
        logits: [n, classes], or [classes] of one query; a regression's values [n, 1] or [1].

    Returns:
        float64 [n], or a single one, in [0, 1]: the calibrated probability of the likeliest class; of a regression
        the probability that the value lies within the tolerance of the truth.
    """
    if calibration.regression is not None:
        return _within_tolerance(calibration.regression, np.asarray(logits, np.float64)[..., 0])
    return np.asarray(softmax(logits, calibration.temperature).max(axis=-1), np.float64)


def _within_tolerance(calibration: RegressionCalibration, values: Floats) -> Floats:
    deviation = np.interp(values, calibration.values, calibration.deviations)
    upper = _normal_cumulative(calibration.tolerance / deviation)
    # The forecast is symmetric about the value; its recalibration need not be.
    recalibrated = [np.interp(each, calibration.expected, calibration.observed) for each in (upper, 1 - upper)]
    return np.asarray(np.clip(recalibrated[0] - recalibrated[1], 0, 1), np.float64)


def _normal_cumulative(deviations: Floats) -> Floats:
    """The standard normal distribution's cumulative probability; serving has no scipy."""
    erf = np.frompyfunc(math.erf, 1, 1)
    return np.asarray((1 + np.asarray(erf(deviations / math.sqrt(2)), np.float64)) / 2, np.float64)
