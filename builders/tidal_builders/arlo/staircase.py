"""Finds the steps in which latency rises with the input length (Arlo, Section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Curve = npt.NDArray[np.float64]

# Number of evenly spaced lengths if there are no steps: as many as Arlo uses for BERT (512 / 64).
_EVEN_COUNT = 8
# Slopes inside the steps that are tried, as shares of the slope of the whole curve. A straight line would have 1.
_SLOPES = (0.0, 0.1, 0.2, 0.3, 0.5)
# Smooth curves are polynomials up to this degree.
_DEGREE = 4
# Differences below this share of the mean latency are ignored.
_RESOLUTION = 2e-3
# Minimum grid points per step: a shorter one is noise, or too narrow for a runtime of its own.
_SHORTEST = 3


def find_steps(lengths: Sequence[int], latencies: Sequence[float]) -> list[int]:
    """Choose the lengths of runtimes: the last length of every step of a latency staircase.

    Within a step, a longer input costs nothing, so a runtime is useful only at the step's end. Two models of the curve
    are compared by the Bayesian information criterion: a staircase (rising levels with one common slope inside the
    steps) and a smooth curve (a polynomial). If the smooth curve is better, no length is preferable to another; then 8
    evenly spaced lengths are returned (fewer on a coarse grid), which bounds the padding of a query by an eighth of
    the longest input.

    Args:
        lengths: Grid of input lengths in tokens, ascending.
        latencies: Latency at each length, in any unit. Single outliers, and noise that is small compared with the
            steps, are tolerated.

    Returns:
        Ascending lengths from the grid; the last is the last of the grid.
    """
    if len(lengths) != len(latencies) or len(lengths) < 2:
        raise ValueError(f"expected two or more lengths with a latency each, got {len(lengths)} and {len(latencies)}")
    x, curve = np.asarray(lengths, float), _without_outliers(np.asarray(latencies, float))
    ends, staircase = _best_staircase(x, curve)
    levels = [curve[a:b].mean() for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    if len(ends) > 1 and np.all(np.diff(levels) > 0) and staircase < _best_smooth(x, curve):
        return [int(lengths[end - 1]) for end in ends]
    return _even_lengths(lengths)


def _best_staircase(x: Curve, curve: Curve) -> tuple[list[int], float]:
    """Ends (exclusive indices) of the steps of the best staircase, and its information criterion."""
    best: tuple[list[int], float] = ([len(x)], float("inf"))
    rise = (curve[-1] - curve[0]) / (x[-1] - x[0])
    for slope in _SLOPES:
        for ends, squares in _segmentations(curve - slope * rise * x):
            # A step has a level and an end; an end, which is searched among all points, counts three times.
            criterion = _criterion(squares, curve, 4 * len(ends) + (slope > 0))
            if criterion < best[1]:
                best = ends, criterion
    return best


def _segmentations(curve: Curve) -> list[tuple[list[int], float]]:
    """The split with the least sum of squared residuals for every number of levels, by dynamic programming."""
    n = len(curve)
    sums, squares = np.concatenate([[0], curve.cumsum()]), np.concatenate([[0], (curve**2).cumsum()])
    start, end = np.arange(n + 1)[:, None], np.arange(n + 1)[None, :]
    width = end - start
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / width
    cost = np.where(width >= _SHORTEST, np.maximum(cost, 0), np.inf)  # of one level from start to end
    least, found = cost[0], []
    befores: list[npt.NDArray[np.intp]] = []
    while np.isfinite(least[n]):
        ends = [n]
        for before in reversed(befores):
            ends.append(int(before[ends[-1]]))
        found.append((ends[::-1], float(least[n])))
        total = least[:, None] + cost
        befores.append(total.argmin(axis=0))
        least = total.min(axis=0)
    return found


def _best_smooth(x: Curve, curve: Curve) -> float:
    """Information criterion of the best polynomial."""
    unit = (x - x[0]) / (x[-1] - x[0])
    found = []
    for degree in range(min(_DEGREE, len(x) - 2) + 1):
        residual = curve - np.polyval(np.polyfit(unit, curve, degree), unit)
        found.append(_criterion(float((residual**2).sum()), curve, degree + 1))
    return min(found)


def _criterion(squares: float, curve: Curve, parameters: int) -> float:
    """Bayesian information criterion of a model with this sum of squared residuals; lower is better."""
    n, floor = len(curve), (_RESOLUTION * abs(curve.mean())) ** 2
    return float(n * np.log(squares / n + floor + 1e-300) + parameters * np.log(n))


def _without_outliers(curve: Curve) -> Curve:
    """Replace outliers, which differ from both neighbours far more than other points, by the nearer neighbour.

    The edge of a step never differs from both neighbours.
    """
    if len(curve) < 3:
        return curve
    middle = np.concatenate([curve[:1], np.median([curve[:-2], curve[1:-1], curve[2:]], axis=0), curve[-1:]])
    apart = np.abs(curve - middle)
    usual = np.median(apart[apart > 0]) if (apart > 0).any() else 0.0
    lonely = apart > 5 * usual if np.count_nonzero(apart) > len(curve) / 8 else apart > 0
    return np.where(lonely, middle, curve)


def _even_lengths(lengths: Sequence[int]) -> list[int]:
    """The grid's lengths at or above even fractions of the longest."""
    grid = np.asarray(lengths)
    wanted = grid[-1] * np.arange(1, _EVEN_COUNT + 1) / _EVEN_COUNT
    return sorted({int(grid[np.searchsorted(grid, length)]) for length in wanted})
