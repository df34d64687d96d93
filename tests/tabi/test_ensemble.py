"""Equation 6."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tidal.serving.softmax import softmax
from tidal.tabi.equations import combine

OUTPUTS = arrays(np.float64, st.tuples(st.integers(1, 4), st.just(3), st.integers(2, 5)), elements=st.floats(-9, 9))


def normalised(numbers: list[float]) -> list[float]:
    return [number / sum(numbers) for number in numbers]


def test_equation_by_hand() -> None:
    # w = 0.6 for the large model: 0.6 x 0.2 + 0.4 x 0.7 = 0.4, 0.6 x 0.8 + 0.4 x 0.3 = 0.6.
    assert combine([0.4, 0.6], [[0.7, 0.3], [0.2, 0.8]]) == pytest.approx([0.4, 0.6])
    assert combine([0.5, 0.2, 0.3], [[1, 0], [0, 1], [0.5, 0.5]]) == pytest.approx([0.65, 0.35])
    assert combine([1], [[0.7, 0.3]]).tolist() == [0.7, 0.3]


def test_a_regressions_values_are_averaged() -> None:
    assert combine([0.25, 0.75], [[2.0], [4.0]]) == pytest.approx([3.5])


def test_a_level_without_a_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        combine([0.5, 0.5], [[1.0, 0.0]])


@given(OUTPUTS, st.lists(st.floats(0.01, 1), min_size=4, max_size=4))
def test_the_ensemble_is_a_distribution_between_its_members(logits: np.ndarray, numbers: list[float]) -> None:
    members = [softmax(each) for each in logits]
    weights = normalised(numbers[: len(members)])
    got = combine(weights, members)
    assert got.sum(axis=1) == pytest.approx(np.ones(3))
    assert (got >= np.min(members, axis=0) - 1e-12).all()
    assert (got <= np.max(members, axis=0) + 1e-12).all()
    assert combine(weights[::-1], members[::-1]) == pytest.approx(got)
    for row in range(3):
        assert combine(weights, [member[row] for member in members]).tolist() == got[row].tolist()
