"""Heads that score all words of the vocabulary: masked language models (Devlin et al.) and SPLADE (Formal et al.)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tidal.manifest import Strict

FloatArray = npt.NDArray[np.float32]
# Number of tokens whose scores of all words are in memory at once.
_TOKENS = 128
# Abramowitz and Stegun, 7.1.26: an error of up to 1.5e-7.
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_ERF_SCALE = 0.3275911


class VocabularyForm(Strict):
    """How a head scores the words of the vocabulary."""

    words: int = Field(ge=1, le=10_000_000, description="number of token ids that it scores")
    tied: bool = Field(description="whether its weights are the base's word embeddings; if not, it has its own")
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = Field(description="activation before the normalisation")
    epsilon: float = Field(gt=0, description="epsilon of the normalisation")
    pooling: Literal["max", "sum"] = Field("max", description="sparse-embedding: how the scores of tokens become one")
    logarithms: Literal[1, 2] = Field(1, description="sparse-embedding: number of logarithms, log(1 + x), of a score")


@dataclass(frozen=True, slots=True)
class VocabularyHead:
    """The layers of a head before its scores: LayerNorm(σ(x·Wᵀ + b)) of a token's hidden state x.

    Attributes:
        form: Form of the scores of words.
        weight: W, float32 [width, width].
        bias: b, float32 [width].
        norm_weight: Weight of the normalisation, float32 [width].
        norm_bias: Bias of the normalisation, float32 [width].
    """

    form: VocabularyForm
    weight: FloatArray
    bias: FloatArray
    norm_weight: FloatArray
    norm_bias: FloatArray

    @classmethod
    def empty(cls, form: VocabularyForm, width: int) -> VocabularyHead:
        """Layers of zeros.

        Args:
            form: Form of the scores of words.
            width: Size of the hidden states.
        """
        none = np.zeros(width, np.float32)
        return cls(form, np.zeros((width, width), np.float32), none, none, none)

    def with_arrays(self, arrays: Mapping[str, FloatArray]) -> VocabularyHead:
        """The same layers with other values.

        Args:
            arrays: Every array by its name.
        """
        return VocabularyHead(self.form, *(arrays[name] for name in ARRAYS))

    @property
    def arrays(self) -> dict[str, FloatArray]:
        """Every array by its name."""
        return {name: getattr(self, name) for name in ARRAYS}

    def transformed(self, hidden: FloatArray) -> FloatArray:
        """What words are scored by.

        Args:
            hidden: Hidden states, float32 [tokens, width].

        Returns:
            float32 [tokens, width].
        """
        inner = _ACTIVATIONS[self.form.activation](hidden @ self.weight.T + self.bias)
        centred = inner - inner.mean(axis=1, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + self.form.epsilon)
        return np.asarray(centred / deviation * self.norm_weight + self.norm_bias, np.float32)


#: Names of the arrays of a `VocabularyHead`.
ARRAYS = ("weight", "bias", "norm_weight", "norm_bias")


def masked_scores(
    scores: Callable[[FloatArray], FloatArray],
    hidden: FloatArray,
    ids: Sequence[npt.NDArray[np.integer[Any]]],
    mask_id: int,
    max_masks: int,
) -> FloatArray:
    """Scores of all words for masked ones.

    Args:
        scores: Scores of all words, float32 [tokens, words], from hidden states [tokens, width].
        hidden: Hidden states of the rows' tokens, float32 [rows, tokens, width].
        ids: Token ids of each row, [length].
        mask_id: Id of the token that stands for a masked word.
        max_masks: Maximum number of masked words of a row; further ones are ignored.

    Returns:
        float32 [rows, max_masks * words]; zeros after a row's masked words.
    """
    places = [np.flatnonzero(row == mask_id)[:max_masks] for row in ids]
    found = scores(np.concatenate([states[own] for states, own in zip(hidden, places, strict=True)]))
    out = np.zeros((len(ids), max_masks, found.shape[1]), np.float32)  # pages of zeros take no memory
    start = 0
    for row, own in enumerate(places):
        out[row, : len(own)] = found[start : start + len(own)]
        start += len(own)
    return out.reshape(len(ids), -1)


def sparse_weights(
    scores: Callable[[FloatArray], FloatArray],
    form: VocabularyForm,
    hidden: FloatArray,
    lengths: npt.NDArray[np.integer[Any]],
) -> FloatArray:
    """Weight of each word for a text: log(1 + relu(score)), the largest or the sum over its tokens (SPLADE, eq. 1).

    Args:
        scores: Scores of all words, float32 [tokens, words], from hidden states [tokens, width].
        form: Pooling of the head.
        hidden: Hidden states of the rows' tokens, float32 [rows, tokens, width].
        lengths: Number of real tokens of each row, [rows].

    Returns:
        float32 [rows, words].
    """

    owners = np.repeat(np.arange(len(lengths)), lengths)  # row of each token
    tokens = hidden[np.arange(hidden.shape[1]) < np.asarray(lengths)[:, None]]
    total = np.zeros((len(lengths), form.words), np.float32)
    for start in range(0, len(tokens), _TOKENS):
        found = scores(tokens[start : start + _TOKENS])
        rows, first = np.unique(owners[start : start + _TOKENS], return_index=True)
        if form.pooling == "max":  # relu and logarithms are monotonic: they are taken of the maximum
            total[rows] = np.maximum(total[rows], np.maximum.reduceat(found, first))
        else:
            total[rows] += np.add.reduceat(_logarithms(np.maximum(found, 0, out=found), form), first)
    return _logarithms(total, form) if form.pooling == "max" else total


def _logarithms(weights: FloatArray, form: VocabularyForm) -> FloatArray:
    for _ in range(form.logarithms):
        np.log1p(weights, out=weights)
    return weights


def _gelu(values: FloatArray) -> FloatArray:
    """Exact GELU; numpy has no error function."""
    wide = values.astype(np.float64)
    size = np.abs(wide) / np.sqrt(2)
    part = 1 / (1 + _ERF_SCALE * size)
    error = np.copysign(1 - part * np.polyval(_ERF, part) * np.exp(-size * size), wide)
    return np.asarray(0.5 * wide * (1 + error), np.float32)


def _gelu_tanh(values: FloatArray) -> FloatArray:
    inner = np.sqrt(2 / np.pi) * (values + 0.044715 * values**3)
    return np.asarray(0.5 * values * (1 + np.tanh(inner)), np.float32)


def _silu(values: FloatArray) -> FloatArray:
    return np.asarray(values * (0.5 + 0.5 * np.tanh(0.5 * values)), np.float32)  # exp would overflow


_ACTIVATIONS: Mapping[str, Callable[[FloatArray], FloatArray]] = {
    "relu": lambda values: np.maximum(values, 0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
}
