"""The next tokens of a batch: repetition penalty, temperature, top-k and top-p, in the order of `transformers`.

A sampled row draws one random number and takes the first token, by id, whose cumulative probability exceeds it. So
rounding differences between batch sizes change a token only if the number is next to a boundary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tidal.flover.sampling.sampler import IntArray, Sampler

FloatArray = npt.NDArray[np.float32]

# Tokens whose probabilities are summed together before single tokens are considered.
_BLOCK = 64
_THRESHOLDS = (2.0**-4, 2.0**-8, 2.0**-12)

#: Returned instead of a token for a row with NaN or infinite logits.
UNDEFINED = -1


def sample_tokens(logits: FloatArray, samplers: Sequence[Sampler]) -> IntArray:
    """Return the next token of every row.

    Args:
        logits: Logits, [rows, vocabulary]; not modified.
        samplers: Sampler of each row; those that sample draw one random number each.

    Returns:
        Token ids, [rows] int64; `UNDEFINED` where logits are NaN or all infinite.
    """
    tokens = np.empty(len(samplers), np.int64)
    plain = [row for row, each in enumerate(samplers) if each.params.greedy and each.seen is None]
    if len(plain) == len(samplers):
        tokens[:] = logits.argmax(axis=1)
    elif plain:
        tokens[plain] = logits[plain].argmax(axis=1)
    for row in sorted(set(range(len(samplers))).difference(plain)):
        sampler = samplers[row]
        scores = _penalised(logits[row], sampler)
        tokens[row] = int(scores.argmax()) if sampler.params.greedy else _sampled(scores, sampler)
    best = logits[np.arange(len(samplers)), np.maximum(tokens, 0)]
    tokens[~np.isfinite(best)] = UNDEFINED  # argmax returns the index of a NaN
    for sampler, token in zip(samplers, tokens.tolist(), strict=True):
        if token != UNDEFINED:
            sampler.record(token)
    return tokens


def _penalised(scores: FloatArray, sampler: Sampler) -> FloatArray:
    if sampler.seen is None:
        return scores
    seen = np.flatnonzero(sampler.seen)
    penalty = np.float32(sampler.params.repetition_penalty)
    values = scores[seen]
    scores = scores.copy()
    scores[seen] = np.where(values < 0, values * penalty, values / penalty)
    return scores


def _sampled(scores: FloatArray, sampler: Sampler) -> int:
    draw = sampler.draw()  # even if no token can be sampled: the numbers must not depend on logits
    tokens, weights = candidates(scores, sampler)
    if not len(tokens):
        return UNDEFINED
    return int(tokens[_select(weights, draw)])


def _select(weights: FloatArray, draw: float) -> int:
    """Index at which the cumulative weight exceeds the share `draw` of the total: first its block, then the token."""
    whole = len(weights) // _BLOCK * _BLOCK
    blocks = weights[:whole].reshape(-1, _BLOCK).sum(axis=1, dtype=np.float64)
    sums = np.cumsum(np.append(blocks, weights[whole:].sum(dtype=np.float64)))
    wanted = min(draw * sums[-1], np.nextafter(sums[-1], 0))
    block = int(np.searchsorted(sums, wanted, side="right"))
    if block:
        wanted -= sums[block - 1]
    inside = weights[block * _BLOCK :][:_BLOCK]
    index = int(np.searchsorted(np.cumsum(inside, dtype=np.float64), wanted, side="right"))
    if index == len(inside):  # the sum of the block was rounded differently
        index = int(np.flatnonzero(inside)[-1])
    return block * _BLOCK + index


def candidates(scores: FloatArray, sampler: Sampler) -> tuple[IntArray, FloatArray]:
    """Return the tokens to sample from, by ascending id, and their unnormalised probabilities.

    Args:
        scores: Logits after the repetition penalty, [vocabulary].
        sampler: Sampler of a generation that is not greedy.

    Returns:
        Token ids and weights, each [candidates], at least one; none if scores are NaN or all infinite.
    """
    params = sampler.params
    highest = scores.max()
    if not np.isfinite(highest):
        return np.empty(0, np.int64), np.empty(0, np.float32)
    if 0 < params.top_k < len(scores):
        tokens = np.flatnonzero(scores >= _highest(scores, params.top_k))  # ties with the last one are kept
        scores = scores[tokens]
    else:
        tokens = np.arange(len(scores))
    # Subtract first: a temperature near 0 then gives minus infinity at worst, whose weight is 0.
    with np.errstate(over="ignore"):
        weights = np.exp((scores - highest) / np.float32(params.temperature))
    if params.top_p < 1:
        inside = _nucleus(weights, params.top_p)
        tokens, weights = tokens[inside], weights[inside]
    return tokens, weights


def _highest(scores: FloatArray, count: int) -> np.float32:
    """The `count`-th highest score."""
    columns = len(scores) // _BLOCK
    if count <= columns:
        # `count` columns have a maximum of at least this bound, so at least `count` scores have.
        bound = _highest(scores[: columns * _BLOCK].reshape(_BLOCK, columns).max(axis=0), count)
        scores = scores[scores >= bound]
    threshold: np.float32 = np.partition(scores, len(scores) - count)[len(scores) - count]
    return threshold


def _nucleus(weights: FloatArray, top_p: float) -> IntArray:
    """Ascending indices of the fewest most likely tokens whose total probability reaches `top_p`.

    The largest weight is 1.
    """
    total = float(weights.sum(dtype=np.float64))
    outside = (1 - top_p) * total
    # Only tokens above a threshold are sorted: the first threshold with enough mass above it. Tokens below an even
    # share of the excluded mass are always excluded.
    for threshold in (*_THRESHOLDS, outside / len(weights)):
        indices = np.flatnonzero(weights >= threshold)
        if weights[indices].sum(dtype=np.float64) >= total - outside:
            break
    above = weights[indices]
    descending = np.sort(above)[::-1]
    # A token is kept if the mass before it, by descending probability, has not reached top_p yet.
    before = np.cumsum(descending, dtype=np.float64) - descending
    count = max(1, int(np.searchsorted(before, total - outside)))
    kept = above > descending[count - 1]
    kept[np.flatnonzero(above == descending[count - 1])[: count - np.count_nonzero(kept)]] = True
    nucleus: IntArray = indices[kept]
    return nucleus
