"""Where latency rises in steps with the input's length (Arlo §3.3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Curve = npt.NDArray[np.float64]

# Lengths of an even ladder, where there are no steps: as many as Arlo's for BERT (512 / 64).
_EVEN = 8
# Rise inside the steps, as shares of the whole rise, that are tried. A line alone would be 1.
_SLOPES = (0.0, 0.1, 0.2, 0.3, 0.5)
# Smooth curves are polynomials up to this degree.
_DEGREE = 4
# Differences below this share of the mean latency are no matter.
_RESOLUTION = 2e-3
# A step is at least so many grid points long: a shorter one is noise, or too narrow for a runtime of its own.
_SHORTEST = 3


def find_steps(lengths: Sequence[int], latencies: Sequence[float]) -> list[int]:
    """Lengths that runtimes should be made for: the last length of every step of a latency staircase.

    Within a step a longer input costs nothing, so only the step's end is worth a runtime. Two descriptions of the
    curve compete by the Bayesian information criterion: a staircase (levels that rise, with one slope in common
    inside the steps) and a smooth curve (a polynomial). Where the smooth one wins, every length is as good as
    another; then an even ladder of 8 lengths (fewer on a coarse grid) is returned, which bounds the padding of a
    query by an eighth of the longest input.

    Args:
        lengths: grid of input lengths in tokens, ascending.
        latencies: latency at each, in any unit; single outliers and noise that is small against the steps are
            tolerated.

    Returns:
        Ascending lengths from the grid; the last is the grid's last.
    """
    if len(lengths) != len(latencies) or len(lengths) < 2:
        raise ValueError(f"expected two or more lengths with a latency each, got {len(lengths)} and {len(latencies)}")
    x, curve = np.asarray(lengths, float), _without_outliers(np.asarray(latencies, float))
    ends, staircase = _best_staircase(x, curve)
    levels = [curve[a:b].mean() for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    if len(ends) > 1 and np.all(np.diff(levels) > 0) and staircase < _best_smooth(x, curve):
        return [int(lengths[end - 1]) for end in ends]
    return _even_ladder(lengths)


def _best_staircase(x: Curve, curve: Curve) -> tuple[list[int], float]:
    """Ends (exclusive indices) of the steps of the best staircase, and its criterion."""
    best: tuple[list[int], float] = ([len(x)], float("inf"))
    rise = (curve[-1] - curve[0]) / (x[-1] - x[0])
    for slope in _SLOPES:
        for ends, squares in _segmentations(curve - slope * rise * x):
            # A step has a level and an end; an end, searched for among all points, counts thrice.
            criterion = _criterion(squares, curve, 4 * len(ends) + (slope > 0))
            if criterion < best[1]:
                best = ends, criterion
    return best


def _segmentations(curve: Curve) -> list[tuple[list[int], float]]:
    """For every number of levels the split with the least sum of squared residuals, by dynamic programming."""
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
    """Criterion of the best polynomial."""
    unit = (x - x[0]) / (x[-1] - x[0])
    found = []
    for degree in range(min(_DEGREE, len(x) - 2) + 1):
        residual = curve - np.polyval(np.polyfit(unit, curve, degree), unit)
        found.append(_criterion(float((residual**2).sum()), curve, degree + 1))
    return min(found)


def _criterion(squares: float, curve: Curve, parameters: int) -> float:
    """Bayesian information criterion of a description with these squared residuals; less is better."""
    n, floor = len(curve), (_RESOLUTION * abs(curve.mean())) ** 2
    return float(n * np.log(squares / n + floor + 1e-300) + parameters * np.log(n))


def _without_outliers(curve: Curve) -> Curve:
    """Points that stick out from both neighbours, far beyond how much others do, replaced by the nearer neighbour.

    A step's edge never sticks out from both.
    """
    if len(curve) < 3:
        return curve
    middle = np.concatenate([curve[:1], np.median([curve[:-2], curve[1:-1], curve[2:]], axis=0), curve[-1:]])
    apart = np.abs(curve - middle)
    usual = np.median(apart[apart > 0]) if (apart > 0).any() else 0.0
    lonely = apart > 5 * usual if np.count_nonzero(apart) > len(curve) / 8 else apart > 0
    return np.where(lonely, middle, curve)


def _even_ladder(lengths: Sequence[int]) -> list[int]:
    """Grid lengths next above even fractions of the longest."""
    grid = np.asarray(lengths)
    wanted = grid[-1] * np.arange(1, _EVEN + 1) / _EVEN
    return sorted({int(grid[np.searchsorted(grid, length)]) for length in wanted})
