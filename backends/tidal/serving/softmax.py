"""From logits to probabilities."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import numpy.typing as npt


@overload
def softmax(logits: npt.ArrayLike, temperature: float = 1.0) -> npt.NDArray[np.float64]: ...


@overload
def softmax(logits: npt.ArrayLike, temperature: float = 1.0, *, dtype: type[np.float32]) -> npt.NDArray[np.float32]: ...


def softmax(
    logits: npt.ArrayLike, temperature: float = 1.0, *, dtype: type[np.floating[Any]] = np.float64
) -> npt.NDArray[Any]:
    """Return probabilities over the last axis (Tabi, Eq. 2; with a temperature Eq. 3).

    Args:
        logits: Array of shape [..., classes].
        temperature: Divisor of the logits, above 0; larger values make the classes more alike.
        dtype: Type to compute in and to return.

    Returns:
        Array of the shape of `logits`, which sums to 1 over the last axis for logits of any size.
    """
    values = np.asarray(logits, dtype)
    # The largest exponent is 0, so nothing overflows.
    shifted = values - values.max(axis=-1, keepdims=True)
    powers = np.exp(shifted if temperature == 1.0 else shifted / temperature)
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), dtype)
