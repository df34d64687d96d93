"""A task's terms as weights: which part can be merged into a copy of the base, and which part remains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tidal.pets.terms import FloatArray, LinearTerms, LowRankDelta, SparseDelta, TaskTerms


def dense(delta: SparseDelta | LowRankDelta, shape: tuple[int, int]) -> FloatArray:
    """A difference of a weight matrix as a dense matrix.

    Args:
        delta: Sparse or low-rank difference.
        shape: Outputs and inputs of the matrix.

    Returns:
        float32 [outputs, inputs].
    """
    if isinstance(delta, LowRankDelta):
        return np.asarray(delta.scale * (delta.up @ delta.down), np.float32)
    found = np.zeros(shape, np.float32)
    rows = np.repeat(np.arange(shape[0]), np.diff(delta.starts.astype(np.int64)))
    found[rows, delta.columns] = delta.values
    return found


def unmerged(terms: TaskTerms) -> TaskTerms:
    """The part of a task that cannot be merged into weights: bottlenecks and the classifier."""
    left = {path: LinearTerms(bottleneck=own.bottleneck) for path, own in terms.linear.items() if own.bottleneck}
    return replace(terms, linear=left, norm={})
