"""Where latency rises in steps with the input's length (Arlo §3.3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# A rise belongs to a step's edge when it exceeds what a smooth curve would rise there by this factor.
_EDGE = 3.0
# Steps are believed when their edges carry this share of the whole rise: a smooth curve with noise carries less.
_SHARE = 0.6
# Lengths of an even ladder, where there are no steps: as many as Arlo's for BERT (512 / 64).
_EVEN = 8


def find_steps(lengths: Sequence[int], latencies: Sequence[float]) -> list[int]:
    """Lengths that runtimes should be made for: the last length of every step of a latency staircase.

    Within a step a longer input costs nothing, so only the step's end is worth a runtime. Where the curve rises
    smoothly every length is as good as another; then an even ladder of 8 lengths (fewer on a coarse grid) is
    returned, which bounds the padding of a query by an eighth of the longest input.

    Args:
        lengths: grid of input lengths in tokens, ascending.
        latencies: latency at each, in any unit; noise is tolerated as far as it is small against the steps.

    Returns:
        Ascending lengths from the grid; the last is the grid's last.
    """
    if len(lengths) != len(latencies) or len(lengths) < 2:
        raise ValueError(f"expected two or more lengths with a latency each, got {len(lengths)} and {len(latencies)}")
    curve = np.maximum.accumulate(np.asarray(latencies, float))
    rises = np.diff(curve)
    total = float(rises.sum())
    if total > 0:
        edges = np.flatnonzero(rises > _EDGE * np.median(rises) + 0.1 * rises.max())
        if 0 < len(edges) <= len(rises) / 2 and rises[edges].sum() >= _SHARE * total:
            return [*(int(lengths[edge]) for edge in edges), int(lengths[-1])]
    return _even_ladder(lengths)


def _even_ladder(lengths: Sequence[int]) -> list[int]:
    """Grid lengths next above even fractions of the longest."""
    grid = np.asarray(lengths)
    wanted = grid[-1] * np.arange(1, _EVEN + 1) / _EVEN
    return sorted({int(grid[np.searchsorted(grid, length)]) for length in wanted})
