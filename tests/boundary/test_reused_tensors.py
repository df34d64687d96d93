"""Output tensors that answers share; without Triton."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.boundary.tensors import FakeTensor
from tidal.requests import Array
from tidal.triton.reused_tensors import ReusedTensors

VALUES = st.sampled_from([b"positive", b"negative", b"", b"x" * 1000, 7, 8, "text", 1.5])


@given(st.lists(st.tuples(st.sampled_from("ab"), VALUES, st.sampled_from([(1,), (1, 1)])), max_size=40))
def test_a_tensor_has_the_name_shape_and_value_that_were_given(
    each: list[tuple[str, object, tuple[int, ...]]],
) -> None:
    tensors = ReusedTensors(FakeTensor)
    for name, value, shape in each:
        array = np.full(shape, value, np.int32 if isinstance(value, int) else object)
        tensor = tensors.get(name, array)
        assert (tensor.name, tensor.array.shape, tensor.array.item()) == (name, shape, value)
        array.fill(0)  # the next batch may overwrite it


@pytest.mark.parametrize("array", [np.array([[b"label"]], object), np.array([[256]], np.int32)])
def test_a_label_or_integer_has_one_tensor(array: Array) -> None:
    tensors = ReusedTensors(FakeTensor)
    first = tensors.get("output", array)
    assert tensors.get("output", array.copy()) is first
    tensors.clear()
    assert tensors.get("output", array) is not first


def test_scores_and_several_rows_have_tensors_of_their_own() -> None:
    tensors = ReusedTensors(FakeTensor)
    for array in (np.array([[0.5]], np.float32), np.array([[b"a"], [b"a"]], object)):
        assert tensors.get("output", array) is not tensors.get("output", array)


def test_the_number_of_tensors_is_bounded() -> None:
    created: list[str] = []

    def create(name: str, array: Array) -> FakeTensor:
        created.append(name)
        return FakeTensor(name, array)

    tensors = ReusedTensors(create)
    first = tensors.get("count", np.array([[0]], np.int32))
    for value in range(1000):
        tensors.get("count", np.array([[value]], np.int32))
    assert len(created) == 1000
    assert tensors.get("count", np.array([[0]], np.int32)) is not first
