"""The logistic function."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def sigmoid(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return 1 / (1 + exp(-x)) without overflow, FP32 of the same shape."""
    small = np.exp(-np.abs(logits))
    return np.asarray(np.where(logits >= 0, 1, small) / (1 + small), np.float32)
