"""Forms of embeddings, compared with definitions in Python's own numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from testing.requests import TextRequest
from tidal.encoder_tasks.embedding import EmbeddingHead, EmbeddingSettings
from tidal.encoder_tasks.head import RowResult
from tidal.encoder_tasks.vectors import VECTOR_OUTPUTS, Vectors, normalized, truncated
from tidal.encoder_tasks.windows import cut_windows

FLOATS = st.floats(-1e3, 1e3, width=32)
BATCHES = arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 20)), elements=FLOATS)


@given(BATCHES, st.integers(1, 20))
def test_truncated_vectors_are_the_first_components_at_length_1(vectors: np.ndarray, dimensions: int) -> None:
    own = normalized(vectors)
    kept = truncated(own, dimensions, normalize=True)
    for source, row, short in zip(vectors.tolist(), own.tolist(), kept.tolist(), strict=True):
        first = row[:dimensions]
        length = math.sqrt(sum(value * value for value in first))
        # Vectors that are nearly 0 stay so, as in torch.
        if math.hypot(*source) > 1e-6 and length > 1e-6:
            assert short == pytest.approx([value / length for value in first], abs=1e-5)
    np.testing.assert_array_equal(truncated(vectors, dimensions, normalize=False), vectors[:, :dimensions])


@given(BATCHES)
def test_int8_is_127_times_the_normalised_vector(vectors: np.ndarray) -> None:
    for row, got in zip(vectors.tolist(), Vectors(vectors)["embedding_int8"].tolist(), strict=True):
        length = math.sqrt(sum(value * value for value in row)) or 1.0
        assert all(abs(value - 127 * each / max(length, 1e-12)) <= 0.51 for value, each in zip(got, row, strict=True))


@given(BATCHES)
def test_bits_are_signs_from_the_highest(vectors: np.ndarray) -> None:
    packed = Vectors(vectors)["embedding_binary"]
    assert packed.dtype == np.uint8
    for row, got in zip(vectors.tolist(), packed.tolist(), strict=True):
        bits = "".join("1" if value > 0 else "0" for value in row)
        bits += "0" * (-len(bits) % 8)
        assert got == [int(bits[at : at + 8], 2) for at in range(0, len(bits), 8)]


def test_fp16_and_unknown_forms() -> None:
    vectors = Vectors(np.array([[0.1, -2.0]], np.float32))
    assert vectors["embedding_fp16"].dtype == np.float16
    assert vectors["embedding_fp16"].tolist() == [[float(np.float16(0.1)), -2.0]]
    with pytest.raises(KeyError):
        vectors["embedding_int4"]


def test_forms_are_computed_when_they_are_requested() -> None:
    settings = EmbeddingSettings(dimension=4, pooling=("mean",), normalized=False, similarity="dot")
    head = EmbeddingHead(settings, ())
    vectors = head.batch({"embedding": np.ones((2, 4), np.float32)})
    rows = [RowResult(vectors, row, {}, 3, 3) for row in range(2)]
    for output in (*VECTOR_OUTPUTS, *VECTOR_OUTPUTS):
        before = set(vars(vectors))
        answer = head.answers(TextRequest("a", "b", wanted=frozenset({output})), rows, [])
        assert answer.keys() == {output}
        assert set(vars(vectors)) - before <= {output}


@pytest.mark.parametrize("unit", [True, False])
def test_the_vector_of_windows_has_the_length_of_others(unit: bool) -> None:
    """Two windows whose vectors are at a right angle: their mean is shorter than both."""
    settings = EmbeddingSettings(
        dimension=2, pooling=("mean",), normalized=unit, similarity="cosine", default_prompt=None
    )
    windows = cut_windows(np.array([False, *[True] * 6, False]), 6, 0)
    outputs = {"embedding": np.eye(2, dtype=np.float32)}
    parts = [RowResult({}, row, outputs, len(own), 6) for row, own in enumerate(windows.tokens)]
    got = EmbeddingHead(settings, ()).merge(windows, parts)["embedding"]
    # The first window owns 4 tokens and both special ones, the second 2.
    expected = [6 / math.hypot(6, 2), 2 / math.hypot(6, 2)] if unit else [6 / 8, 2 / 8]
    assert got.tolist() == [pytest.approx(expected)]
