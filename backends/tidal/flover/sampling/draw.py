"""Random tokens of several rows at once, by temperature, top-k, top-p and min-p in the order of `transformers`.

A draw takes the first token, by id, at which the cumulative probability exceeds a random number, so rounding
differences between batch sizes change a token only if the number is next to a boundary. A token outside of the
top-p nucleus is rejected and drawn again from the more likely ones, which gives the same distribution as cutting the
nucleus out first, and needs no sort.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tidal.flover.sampling.history import FloatArray, IntArray
from tidal.flover.sampling.sampler import Sampler

Weights = npt.NDArray[np.float32]

#: Returned instead of a token for a row with NaN or infinite logits.
UNDEFINED = -1
# Tokens whose probabilities are summed together before single tokens are considered.
_BLOCK = 64
# Numbers of a chunk of rows: its passes stay in the processor's caches.
_CHUNK = 1 << 19
_LEAST_TEMPERATURE = 1e-30


def draw_tokens(scores: FloatArray, rows: Sequence[int], samplers: Sequence[Sampler]) -> IntArray:
    """Draw the next token of some rows.

    Args:
        scores: Scores of all rows, [all rows, vocabulary]; not modified.
        rows: Rows to draw tokens for.
        samplers: Sampler of each of these rows, none of them greedy.

    Returns:
        Token ids, [rows] int64; `UNDEFINED` where scores are NaN or all infinite.
    """
    tokens = np.empty(len(rows), np.int64)
    vocabulary = scores.shape[1]
    narrow = [index for index, each in enumerate(samplers) if 0 < each.params.top_k < vocabulary]
    wide = [index for index, each in enumerate(samplers) if not 0 < each.params.top_k < vocabulary]
    if narrow:
        kept = [_most_likely(scores[rows[index]], samplers[index].params.top_k) for index in narrow]
        width = max(map(len, kept))
        ids, values = np.zeros((len(narrow), width), np.int64), np.full((len(narrow), width), -np.inf, np.float32)
        for row, (index, each) in enumerate(zip(narrow, kept, strict=True)):
            ids[row, : len(each)] = each
            values[row, : len(each)] = scores[rows[index], each]
        chosen = _draw(values, [samplers[index] for index in narrow])
        tokens[narrow] = np.where(chosen == UNDEFINED, UNDEFINED, ids[np.arange(len(narrow)), chosen])
    size = max(1, _CHUNK // vocabulary)
    for start in range(0, len(wide), size):
        chunk = wide[start : start + size]
        tokens[chunk] = _draw(scores[[rows[index] for index in chunk]], [samplers[index] for index in chunk])
    return tokens


def _most_likely(scores: FloatArray, count: int) -> IntArray:
    """Ascending ids of the `count` highest scores, and of those equal to the last of them.

    If scores are NaN or infinite, only the id of one that is.
    """
    columns = len(scores) // _BLOCK
    maxima = scores[: columns * _BLOCK].reshape(_BLOCK, columns).max(axis=0) if count <= columns else scores
    if not np.isfinite(maxima.max()):
        return np.array([scores.argmax()])
    # `count` columns have a maximum of at least this bound, so at least `count` scores have.
    ids = np.flatnonzero(scores >= np.partition(maxima, len(maxima) - count)[len(maxima) - count])
    if count > columns:
        return ids
    scores = scores[ids]
    kept: IntArray = ids[scores >= np.partition(scores, len(scores) - count)[len(scores) - count]]
    return kept


def _draw(scores: FloatArray, samplers: Sequence[Sampler]) -> IntArray:
    """Index of a random token of each row; `UNDEFINED` where scores are NaN or all infinite; overwrites scores."""
    numbers = np.array([each.draw() for each in samplers])  # whatever the scores
    highest = scores.max(axis=1, keepdims=True)
    defined = np.isfinite(highest[:, 0])
    if not defined.all():
        scores[~defined] = highest[~defined] = 0
    weights = _weights(scores, highest, [each.params.temperature for each in samplers])
    blocks = _blocks(weights)
    limits = blocks.sum(axis=1, dtype=np.float64) * [each.params.top_p for each in samplers]
    for row, each in enumerate(samplers):
        if each.params.min_p > 0:
            np.multiply(weights[row], weights[row] >= np.float32(each.params.min_p), out=weights[row])
            blocks[row] = _blocks(weights[row : row + 1])[0]
    chosen = select(weights, blocks, numbers)
    for row, each in enumerate(samplers):
        if each.params.top_p < 1:
            only = slice(row, row + 1)
            while not keep_nucleus(weights[row], int(chosen[row]), limits[row]):
                chosen[only] = select(weights[only], _blocks(weights[only]), np.array([each.draw()]))
    chosen[~defined] = UNDEFINED
    return chosen


def _weights(scores: FloatArray, highest: FloatArray, temperatures: Sequence[float]) -> Weights:
    """Unnormalised probabilities, [rows, tokens padded to whole blocks]; the largest of a row is 1."""
    rows, count = scores.shape
    divisors = np.maximum(np.array(temperatures), _LEAST_TEMPERATURE).astype(np.float32)[:, None]
    padded = -(-count // _BLOCK) * _BLOCK
    weights = np.empty((rows, padded), np.float32)
    weights[:, count:] = 0
    inside = weights[:, :count]
    # Subtract first: a temperature near 0 then gives minus infinity at worst, whose weight is 0.
    np.subtract(scores, highest, out=inside)
    with np.errstate(over="ignore"):
        np.divide(inside, divisors, out=inside)
    np.exp(inside, out=inside)
    return weights


def _blocks(weights: Weights) -> FloatArray:
    """Sum of each block of tokens, [rows, blocks]."""
    blocks: FloatArray = np.einsum("rbt->rb", weights.reshape(len(weights), -1, _BLOCK))
    return blocks


def select(weights: Weights, blocks: FloatArray, numbers: npt.NDArray[np.float64]) -> IntArray:
    """Index at which the cumulative weight exceeds a share of the total: first its block, then the token.

    Args:
        weights: Weights of the tokens, [rows, tokens], a multiple of the block size.
        blocks: Sum of each block, [rows, blocks].
        numbers: Share of each row, in [0, 1).

    Returns:
        Indices, [rows], of tokens whose weight is not 0.
    """
    every = np.arange(len(weights))
    sums = np.cumsum(blocks, axis=1, dtype=np.float64)
    total = sums[:, -1]
    wanted = np.minimum(numbers * total, np.nextafter(total, 0))
    block = (sums <= wanted[:, None]).sum(axis=1)
    wanted -= np.where(block > 0, sums[every, block - 1], 0)
    inside = weights.reshape(len(weights), -1, _BLOCK)[every, block]
    chosen = (np.cumsum(inside, axis=1, dtype=np.float64) <= wanted[:, None]).sum(axis=1)
    for row in np.flatnonzero(chosen == _BLOCK):  # the sum of the block was rounded differently
        chosen[row] = np.flatnonzero(inside[row])[-1]
    indices: IntArray = block * _BLOCK + chosen
    return indices


def keep_nucleus(weights: Weights, index: int, limit: float) -> bool:
    """Whether a token is one of the fewest most likely ones whose weights reach a limit.

    If it is not, the weights of all tokens that are not more likely are set to 0. Of equally likely tokens those with
    lower ids count as more likely.

    Args:
        weights: Weights of one row, [tokens].
        index: Index of the token.
        limit: Limit of the nucleus; the most likely token is always inside.
    """
    weight = weights[index]
    more_likely = weights > weight
    more_likely[:index] |= weights[:index] == weight
    mass = float(np.dot(weights, more_likely))
    if mass < limit or mass == 0:
        return True
    np.multiply(weights, more_likely, out=weights)
    return False
