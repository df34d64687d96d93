"""The equations of a cascade: confidence (Tabi Eq. 3), re-routing (Eq. 4) and the ensemble (Eq. 6)."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal.serving.softmax import softmax
from tidal.tabi.manifest import Calibration, RegressionCalibration

Floats = npt.NDArray[np.float64]


def relevance_logits(scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the logits of a reranker's two classes, not relevant and relevant: 0 and its own logit.

    Their softmax (Eq. 2) is the sigmoid of the logit, so that Eq. 3, 4 and 6 apply as to any classification.

    Args:
        scores: Logits of a reranker, [n, 1].

    Returns:
        Array [n, 2].
    """
    return np.concatenate([np.zeros_like(scores), scores], axis=1)


def confidence(calibration: Calibration, logits: npt.ArrayLike) -> Floats:
    """Return the probability that a level's answers are right: con(y) of Eq. 3 (Tabi §4.1).

    Args:
        calibration: Calibration of the level.
        logits: Logits [n, classes], or [classes] of one query; for a regression its values [n, 1] or [1].

    Returns:
        float64 [n], or a scalar, in [0, 1]: the calibrated probability of the most likely class; for a regression
        the probability that the value is within the tolerance of the truth.
    """
    if calibration.regression is not None:
        return _within_tolerance(calibration.regression, np.asarray(logits, np.float64)[..., 0])
    return np.asarray(softmax(logits, calibration.temperature).max(axis=-1), np.float64)


def reroute_probability(
    confidence: npt.ArrayLike, cutoff: float | Floats, slope: float | Floats
) -> float | npt.NDArray[np.float64]:
    """Return the probability that a query is re-routed to the next level: P_large(y) of Eq. 4 (Tabi §4.1).

    Args:
        confidence: Calibrated confidence con(y), of any shape.
        cutoff: Cut-off c, one or one for each confidence; a query whose confidence is at most c is always re-routed.
        slope: Slope k of the sigmoid above the cut-off, one or one for each confidence.

    Returns:
        float64 with the shape of `confidence`, a float for a scalar, in [0, 1]; decreases with the confidence.
    """
    sure = np.asarray(confidence, np.float64)
    normalised = (sure - cutoff) / (1 - cutoff) - 0.5
    with np.errstate(over="ignore"):  # an exponential that overflows is a probability of 0
        soft = 1 / (1 + np.exp(slope * normalised))
    chance = np.where(sure > cutoff, soft, 1.0)
    return chance if chance.ndim else float(chance)


def request_key(request_id: str, texts: Sequence[bytes]) -> bytes:
    """Return the seed of a request's draws: its id, or its texts if it has none.

    Args:
        request_id: Id that the client sent; empty if it sent none.
        texts: Text of the query, or the two texts of a pair.
    """
    if request_id:
        return b"id" + request_id.encode()
    return b"text" + b"".join(struct.pack("<q", len(text)) + text for text in texts)


def draw(version: int, key: bytes, row: int, level: int) -> float:
    """Return a uniform number in [0, 1) that depends on the arguments only, so it is the same on every machine.

    Args:
        version: Version of the cascade.
        key: Seed of the request, from `request_key`.
        row: Row of the query in its request.
        level: Index, among the manifest's levels, of the level that has answered.
    """
    digest = blake2b(struct.pack("<3q", version, row, level) + key, digest_size=8).digest()
    # As many bits as a float holds: the result is never rounded up to 1.
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def combine(weights: Sequence[float], outputs: Sequence[npt.ArrayLike]) -> Floats:
    """Return the weighted average of the levels' outputs: s(y) of Eq. 6 (Tabi §4.3).

    Args:
        weights: Weight of each level that ran; they sum to 1.
        outputs: Output of each of these levels: probabilities at temperature 1 (`softmax(logits)`, Eq. 2) [classes]
            or [n, classes]; for a regression its values.

    Returns:
        float64 with the shape of one output.
    """
    # Level by level rather than as a matrix product, whose last digits depend on the number of queries.
    terms = [weight * np.asarray(output, np.float64) for weight, output in zip(weights, outputs, strict=True)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return np.asarray(total, np.float64)


def _within_tolerance(calibration: RegressionCalibration, values: Floats) -> Floats:
    deviation = np.interp(values, calibration.values, calibration.deviations)
    upper = _normal_cumulative(calibration.tolerance / deviation)
    # The forecast is symmetric around the value; its recalibration need not be.
    recalibrated = [np.interp(each, calibration.expected, calibration.observed) for each in (upper, 1 - upper)]
    return np.asarray(np.clip(recalibrated[0] - recalibrated[1], 0, 1), np.float64)


def _normal_cumulative(deviations: Floats) -> Floats:
    """Return the cumulative probability of the standard normal distribution; the server image has no scipy."""
    erf = np.frompyfunc(math.erf, 1, 1)
    return np.asarray((1 + np.asarray(erf(deviations / math.sqrt(2)), np.float64)) / 2, np.float64)
