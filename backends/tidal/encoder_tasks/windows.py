"""Windows over texts that are longer than a model reads, and one result from those of the windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the tokens of one query.

    The tokens before the content, such as `[CLS]` and a question, and those after it are in every window. Consecutive
    windows overlap in the content; a token in the overlap is owned by the window in which it is farther from the cut,
    the earlier one of two as far. Tokens outside the content are owned by the first window.

    Attributes:
        tokens: Indices of each window's tokens in the query, ascending; shape [length of the window].
        owned: Whether a window owns each of its tokens, by window; bool [length of the window].
    """

    tokens: tuple[Integers, ...]
    owned: tuple[npt.NDArray[np.bool_], ...]


def window_ranges(length: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """Return the first token of each window and the one after its last, as transformers' tokenizers cut them.

    Args:
        length: Number of tokens to cover.
        size: Maximum number of tokens of a window.
        overlap: Number of tokens that consecutive windows have in common, below `size`.

    Raises:
        ValueError: `overlap` is negative or not below `size`.
    """
    if not 0 <= overlap < size:
        raise ValueError(f"the overlap of windows of {size} tokens is {overlap}; expected 0 to {size - 1}")
    starts = range(0, max(length - overlap, 1), size - overlap)
    return [(start, min(start + size, length)) for start in starts]


def cut_windows(content: npt.NDArray[np.bool_], max_length: int, overlap: int) -> Windows:
    """Cut a query into windows.

    Args:
        content: Whether each token is of the text that is cut, [length]; these tokens are consecutive.
        max_length: Maximum number of tokens of a window.
        overlap: Number of tokens of the text that consecutive windows have in common.

    Raises:
        ValueError: The other tokens leave no room for more of the text than the overlap.
    """
    inside = np.flatnonzero(content)
    first, behind = (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (len(content), len(content))
    before, after = np.arange(first), np.arange(behind, len(content))
    ranges = window_ranges(behind - first, max_length - len(before) - len(after), overlap)
    # Content is owned by window i from edges[i] to edges[i + 1]: an edge is the middle of an overlap, rounded up.
    middles = [(ends + starts + 1) // 2 for (_, ends), (starts, _) in pairwise(ranges)]
    edges = [0, *middles, behind - first]
    tokens, owned = [], []
    for number, (start, end) in enumerate(ranges):
        places = np.arange(start, end)
        mine = (places >= edges[number]) & (places < edges[number + 1])
        outside = number == 0
        tokens.append(np.concatenate([before, first + places, after]))
        owned.append(np.concatenate([np.full(len(before), outside), mine, np.full(len(after), outside)]))
    return Windows(tuple(tokens), tuple(owned))


def merge_tokens(windows: Windows, values: Sequence[Array]) -> Array:
    """Return values of all tokens of a query, each from the window that owns it.

    Args:
        windows: Windows over the query.
        values: Values of the tokens of each window, [length of the window, ...].

    Returns:
        Array [length, ...].
    """
    length = 1 + max(int(tokens[-1]) for tokens in windows.tokens)
    merged = np.zeros((length, *values[0].shape[1:]), values[0].dtype)
    for tokens, owned, each in zip(windows.tokens, windows.owned, values, strict=True):
        merged[tokens[owned]] = each[owned]
    return merged


def merge_vectors(windows: Windows, vectors: Floats) -> Floats:
    """Return the mean of the windows' vectors, each weighted by the number of tokens that the window owns.

    Args:
        windows: Windows over the query.
        vectors: Vector of each window, FP32 [windows, width].

    Returns:
        FP32 [width], not normalised.
    """
    weights = np.array([owned.sum() for owned in windows.owned], np.float32)
    mean: Floats = weights @ vectors / weights.sum()
    return mean
