"""Probabilities in the requested type; their values are tested with Tabi's equations."""

from __future__ import annotations

import numpy as np
import pytest

from tidal.serving.softmax import softmax


def test_float32_is_computed_and_returned_as_float32() -> None:
    logits = np.array([[1e4, 0.0, -1e4], [0.5, 0.5, 0.5]], np.float32)
    found = softmax(logits, dtype=np.float32)
    assert found.dtype == np.float32
    assert found == pytest.approx(np.array([[1, 0, 0], [1 / 3] * 3]), abs=1e-6)
    assert softmax(logits).dtype == np.float64


def test_float32_is_not_computed_in_float64() -> None:
    logits = np.random.default_rng(0).normal(size=(64, 7)).astype(np.float32)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    assert (softmax(logits, dtype=np.float32) == powers / powers.sum(axis=-1, keepdims=True)).all()


def test_logits_are_not_changed() -> None:
    logits = np.array([[3.0, 1.0]], np.float32)
    softmax(logits, 2.0, dtype=np.float32)
    assert logits.tolist() == [[3.0, 1.0]]
