"""The nearest texts by brute force, and folders that cannot be served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tidal.errors import InvalidArgument
from tidal.nearest.index import TEXTS, VECTORS, nearest, read_index

# Whole numbers: their products are exact in every order of summation, and often equal.
NUMBERS = st.integers(-2, 2).map(float)


@given(st.data(), st.integers(1, 12), st.integers(1, 3), st.integers(1, 15))
def test_the_largest_products_the_first_of_equal_ones_first(data: st.DataObject, rows: int, size: int, k: int) -> None:
    vectors = data.draw(arrays.arrays(np.float32, (rows, size), elements=NUMBERS))
    query = data.draw(arrays.arrays(np.float32, size, elements=NUMBERS))
    products = [sum(float(a) * float(b) for a, b in zip(vector, query, strict=True)) for vector in vectors]
    expected = sorted(range(rows), key=lambda row: (-products[row], row))[:k]
    found, similarities = nearest(vectors, query, k)
    assert found.tolist() == expected
    assert similarities.tolist() == [products[row] for row in expected]


def write(folder: Path, texts: str | bytes, vectors: Any) -> Path:
    (folder / TEXTS).write_bytes(texts if isinstance(texts, bytes) else texts.encode())
    np.save(folder / VECTORS, vectors)
    return folder


def test_texts_and_vectors_are_read_in_order(tmp_path: Path) -> None:
    index = read_index(write(tmp_path, "über 東京\nsecond 🎉\n", np.eye(2, dtype=np.float16)))
    assert [text.decode() for text in index.texts] == ["über 東京", "second 🎉"]
    assert index.vectors.dtype == np.float32
    np.testing.assert_array_equal(index.vectors, np.eye(2))


@pytest.mark.parametrize(
    ("texts", "vectors", "message"),
    [
        ("one\ntwo\n", np.ones((3, 2), np.float32), "texts.txt has 2 lines and vectors.npy has 3 vectors"),
        ("", np.ones((0, 2), np.float32), "texts.txt has 0 lines .* at least one text"),
        ("one\n", np.ones(2, np.float32), r"float32 of shape \[2\]; expected finite"),
        ("one\n", np.ones((1, 2), np.int8), r"int8 of shape \[1, 2\]; expected finite"),
        ("one\n", np.full((1, 2), np.nan, np.float32), "expected finite"),
        ("one\n", np.array([["a", None]], object), "allow_pickle"),
        (b"one \xff\n", np.ones((1, 2), np.float32), "expected texts.txt, one text per line in UTF-8"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, texts: str | bytes, vectors: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read_index(write(tmp_path, texts, vectors))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"expected texts\.txt.*No such file"):
        read_index(tmp_path)
