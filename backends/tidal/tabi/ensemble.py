"""The weighted ensemble of all levels that ran (Tabi §4.3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tidal.tabi.confidence import Floats


def combine(weights: Sequence[float], outputs: Sequence[npt.ArrayLike]) -> Floats:
    """The weighted average of the levels' outputs, Eq. 6: s(y).

    Args:
        weights: one for each level that ran, sum 1.
        outputs: of each of them the probabilities at temperature 1 (`softmax(logits)`, Eq. 2) [classes] or
            [n, classes]; of a regression the values.

    Returns:
        float64 of the shape of each output.
    """
    # Level by level rather than as a matrix product, whose last digits depend on the number of queries.
    terms = [weight * np.asarray(output, np.float64) for weight, output in zip(weights, outputs, strict=True)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return np.asarray(total, np.float64)
