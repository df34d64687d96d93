"""Scores of words in numpy, compared with torch and with one token after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.pets import vocabulary
from tidal.pets.vocabulary import VocabularyForm, VocabularyHead, masked_scores, sparse_weights

WIDTH, WORDS = 5, 11
FUNCTIONS = {
    "relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu,
    "gelu_tanh": lambda values: torch.nn.functional.gelu(values, approximate="tanh"),
}  # fmt: skip
#: Scores of all words for tokens.
MATRIX = np.random.default_rng(0).normal(size=(WORDS, WIDTH)).astype(np.float32)


def scores(hidden: Any) -> Any:
    return hidden @ MATRIX.T


@pytest.mark.parametrize("activation", FUNCTIONS)
def test_layers_equal_those_of_torch(activation: Any) -> None:
    draw = np.random.default_rng(1)
    form = VocabularyForm(words=WORDS, tied=False, activation=activation, epsilon=1e-7)
    weight, bias, norm_weight, norm_bias = (
        draw.normal(size=shape).astype(np.float32) for shape in ((WIDTH, WIDTH), WIDTH, WIDTH, WIDTH)
    )
    head = VocabularyHead(form, weight, bias, norm_weight, norm_bias)
    hidden = (draw.normal(size=(200, WIDTH)) * np.logspace(-3, 2, 200)[:, None]).astype(np.float32)
    inner = FUNCTIONS[activation](torch.nn.functional.linear(*map(torch.from_numpy, (hidden, weight, bias))))
    affine = torch.from_numpy(norm_weight), torch.from_numpy(norm_bias)
    wanted = torch.nn.functional.layer_norm(inner, (WIDTH,), *affine, form.epsilon)
    np.testing.assert_allclose(head.transformed(hidden), wanted.numpy(), atol=2e-4)
    with np.errstate(all="raise", under="ignore"):  # nor do extreme values overflow
        head.transformed(np.full((1, WIDTH), 1e4, np.float32))


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    pooling=st.sampled_from(["max", "sum"]),
    logarithms=st.sampled_from([1, 2]),
    at_once=st.integers(1, 12),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_sparse_weights_are_those_of_each_token(
    lengths: list[int], pooling: Any, logarithms: Any, at_once: int, seed: int
) -> None:
    hidden = np.random.default_rng(seed).normal(size=(len(lengths), max(lengths) + 2, WIDTH)).astype(np.float32)
    form = VocabularyForm(
        words=WORDS, tied=False, activation="gelu", epsilon=1e-5, pooling=pooling, logarithms=logarithms
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "_TOKENS", at_once)
        found = sparse_weights(scores, form, hidden, np.asarray(lengths))
    for row, length in enumerate(lengths):
        each = [np.maximum(scores(hidden[row, token]), 0) for token in range(length)]
        for _ in range(logarithms):
            each = [np.log(1 + values.astype(np.float64)) for values in each]
        wanted = np.max(each, axis=0) if pooling == "max" else np.sum(each, axis=0)
        np.testing.assert_allclose(found[row], wanted, atol=1e-5)


@given(
    rows=st.lists(st.lists(st.sampled_from([4, 7, 8]), min_size=1, max_size=7), min_size=1, max_size=5),
    max_masks=st.integers(1, 4),
)
def test_masked_words_have_their_tokens_scores(rows: list[list[int]], max_masks: int) -> None:
    hidden = np.random.default_rng(2).normal(size=(len(rows), 7, WIDTH)).astype(np.float32)
    found = masked_scores(scores, hidden, [np.array(row) for row in rows], 4, max_masks)
    assert found.shape == (len(rows), max_masks * WORDS)
    for row, ids in enumerate(rows):
        masks = [token for token, number in enumerate(ids) if number == 4][:max_masks]
        wanted = np.zeros((max_masks, WORDS), np.float32)
        for slot, token in enumerate(masks):
            wanted[slot] = scores(hidden[row, token])
        np.testing.assert_allclose(found[row].reshape(max_masks, WORDS), wanted, atol=1e-5)
