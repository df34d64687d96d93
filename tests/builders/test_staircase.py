from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidal_builders.arlo.staircase import find_steps

GRID = list(range(8, 513, 8))
EIGHTHS = [64, 128, 192, 256, 320, 384, 448, 512]


def staircase(step: int, slope: float = 0.0) -> np.ndarray:
    """Latency that rises by 1 at every multiple of `step`, and by `slope` a step's width within it."""
    lengths = np.asarray(GRID)
    return 1 + (lengths - 1) // step + slope * ((lengths - 1) % step) / step


@pytest.mark.parametrize("step", [32, 64, 128])
def test_steps_are_found(step: int) -> None:
    assert find_steps(GRID, staircase(step)) == list(range(step, 513, step))


@pytest.mark.parametrize("step", [64, 128])
@pytest.mark.parametrize("seed", range(20))
def test_steps_are_found_in_noise_and_with_a_slope(step: int, seed: int) -> None:
    """Arlo's observation: within a step latency changes by less than 5 %."""
    curve = staircase(step, slope=0.1)
    noisy = curve + np.random.default_rng(seed).normal(0, 0.02 * curve.mean(), len(curve))
    assert find_steps(GRID, noisy) == list(range(step, 513, step))


def test_uneven_steps_are_found() -> None:
    curve = [1.0 if n <= 48 else 1.8 if n <= 200 else 3.5 for n in GRID]
    assert find_steps(GRID, curve) == [48, 200, 512]


def test_a_single_outlier_is_not_a_step() -> None:
    curve = staircase(64)
    curve[10] += 0.8  # 88 tokens
    assert find_steps(GRID, curve) == EIGHTHS


@pytest.mark.parametrize("shape", ["line", "parabola", "flat"])
@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("seed", range(10))
def test_a_smooth_curve_gets_an_even_ladder(shape: str, noise: float, seed: int) -> None:
    lengths = np.asarray(GRID, float)
    curve = {"line": 1 + lengths / 64, "parabola": 1 + lengths / 64 + (lengths / 256) ** 2, "flat": lengths * 0 + 3}[
        shape
    ]
    curve = curve + np.random.default_rng(seed).normal(0, noise * curve.mean(), len(curve))
    assert find_steps(GRID, curve) == EIGHTHS


def test_a_coarse_grid_is_returned_whole() -> None:
    assert find_steps([10, 20, 30], [1.0, 2.0, 3.0]) == [10, 20, 30]


@given(st.lists(st.floats(0.01, 1e3), min_size=2, max_size=64))
def test_lengths_ascend_on_the_grid_and_end_at_its_end(latencies: list[float]) -> None:
    grid = [8 * (i + 1) for i in range(len(latencies))]
    found = find_steps(grid, latencies)
    assert found == sorted(set(found))
    assert set(found) <= set(grid)
    assert found[-1] == grid[-1]


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="3 and 2"):
        find_steps([8, 16, 24], [1.0, 2.0])
