"""Order of scores."""

from __future__ import annotations

import numpy as np

from tidal_client.results import Array


def descending(scores: Array) -> Array:
    """Return the indices of scores from the highest to the lowest; equal ones keep their order.

    Args:
        scores: Scores, [scores].
    """
    order: Array = np.argsort(-scores, kind="stable")
    return order
