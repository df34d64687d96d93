"""The different tokens of a prompt and its text, with the number of times that each occurs in the text."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

_SPARE = 64


class TokenHistory:
    """The different tokens of one generation; adding a token takes constant time.

    Args:
        prompt: Token ids that are in the history from the start, [tokens] int64; they count as 0 occurrences.
    """

    __slots__ = ("_counts", "_ids", "_index")

    def __init__(self, prompt: IntArray) -> None:
        known = np.unique(prompt)
        self._index = {token: index for index, token in enumerate(known.tolist())}
        self._ids: IntArray = np.concatenate([known, np.zeros(_SPARE, np.int64)])
        self._counts: FloatArray = np.zeros(len(self._ids), np.float32)

    @property
    def ids(self) -> IntArray:
        """The different token ids, [tokens]."""
        return self._ids[: len(self._index)]

    @property
    def counts(self) -> FloatArray:
        """Number of times that each of `ids` occurs in the text, [tokens]."""
        return self._counts[: len(self._index)]

    def copy(self) -> TokenHistory:
        """Return a history to which other tokens can be added."""
        other = copy.copy(self)
        other._index, other._ids, other._counts = self._index.copy(), self._ids.copy(), self._counts.copy()
        return other

    def add(self, token: int) -> None:
        """Add a token of the text."""
        index = self._index.setdefault(token, len(self._index))
        if index == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[index] = token
        self._counts[index] += 1
