"""The next tokens of a step's rows: repetition penalty, temperature, top-k and top-p, in the order of `transformers`.

A sampled row takes one random number and the first token, by id, at which the sum of probabilities passes it. Rounding
differences between batches of different sizes so move a draw across a border only when it lies next to one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tidal.flover.sampling.sampler import IntArray, Sampler

FloatArray = npt.NDArray[np.float32]

# Tokens that are looked at together before any of them is alone.
_BLOCK = 64
_BORDERS = (2.0**-4, 2.0**-8, 2.0**-12)

#: In place of a token where a row's logits are not numbers.
UNDEFINED = -1


def choose(logits: FloatArray, samplers: Sequence[Sampler]) -> IntArray:
    """The next token of every row.

    Args:
        logits: [rows, vocabulary]; not changed.
        samplers: one a row; those that sample draw one random number each.

    Returns:
        [rows]; `UNDEFINED` where logits are NaN or all of them infinite.
    """
    tokens = np.empty(len(samplers), np.int64)
    plain = [row for row, each in enumerate(samplers) if each.sampling.greedy and each.seen is None]
    if len(plain) == len(samplers):
        tokens[:] = logits.argmax(axis=1)
    elif plain:
        tokens[plain] = logits[plain].argmax(axis=1)
    for row in sorted(set(range(len(samplers))).difference(plain)):
        sampler = samplers[row]
        scores = _penalised(logits[row], sampler)
        tokens[row] = int(scores.argmax()) if sampler.sampling.greedy else _sampled(scores, sampler)
    best = logits[np.arange(len(samplers)), np.maximum(tokens, 0)]
    tokens[~np.isfinite(best)] = UNDEFINED  # argmax gives the place of a NaN
    for sampler, token in zip(samplers, tokens.tolist(), strict=True):
        if token != UNDEFINED:
            sampler.took(token)
    return tokens


def _penalised(scores: FloatArray, sampler: Sampler) -> FloatArray:
    if sampler.seen is None:
        return scores
    seen = np.flatnonzero(sampler.seen)
    penalty = np.float32(sampler.sampling.repetition_penalty)
    values = scores[seen]
    scores = scores.copy()
    scores[seen] = np.where(values < 0, values * penalty, values / penalty)
    return scores


def _sampled(scores: FloatArray, sampler: Sampler) -> int:
    draw = sampler.draw()  # also where nothing can be taken, so that a row's numbers do not depend on its logits
    tokens, weights = kept(scores, sampler)
    if not len(tokens):
        return UNDEFINED
    return int(tokens[_drawn(weights, draw)])


def _drawn(weights: FloatArray, draw: float) -> int:
    """The first place at which the sum of weights passes a share `draw` of all: first its block, then it."""
    whole = len(weights) // _BLOCK * _BLOCK
    blocks = weights[:whole].reshape(-1, _BLOCK).sum(axis=1, dtype=np.float64)
    sums = np.cumsum(np.append(blocks, weights[whole:].sum(dtype=np.float64)))
    wanted = min(draw * sums[-1], np.nextafter(sums[-1], 0))
    block = int(np.searchsorted(sums, wanted, side="right"))
    if block:
        wanted -= sums[block - 1]
    inside = weights[block * _BLOCK :][:_BLOCK]
    place = int(np.searchsorted(np.cumsum(inside, dtype=np.float64), wanted, side="right"))
    if place == len(inside):  # the block's sum was rounded otherwise
        place = int(np.flatnonzero(inside)[-1])
    return block * _BLOCK + place


def kept(scores: FloatArray, sampler: Sampler) -> tuple[IntArray, FloatArray]:
    """Tokens that may be taken, by ascending id, and their probabilities times a factor.

    Args:
        scores: [vocabulary], repetition penalty applied.
        sampler: of a generation that is not greedy.

    Returns:
        Two arrays [kept], at least one token; none where scores are NaN or all of them infinite.
    """
    sampling = sampler.sampling
    highest = scores.max()
    if not np.isfinite(highest):
        return np.empty(0, np.int64), np.empty(0, np.float32)
    if 0 < sampling.top_k < len(scores):
        tokens = np.flatnonzero(scores >= _highest(scores, sampling.top_k))  # tokens as likely as the last one stay too
        scores = scores[tokens]
    else:
        tokens = np.arange(len(scores))
    # The difference first: a temperature near 0 makes it minus infinity at worst, whose weight is 0.
    with np.errstate(over="ignore"):
        weights = np.exp((scores - highest) / np.float32(sampling.temperature))
    if sampling.top_p < 1:
        inside = _nucleus(weights, sampling.top_p)
        tokens, weights = tokens[inside], weights[inside]
    return tokens, weights


def _highest(scores: FloatArray, count: int) -> np.float32:
    """The score that so many are not below."""
    columns = len(scores) // _BLOCK
    if count <= columns:
        # So many columns have a maximum that is not below this, and so at least as many scores are not.
        bound = _highest(scores[: columns * _BLOCK].reshape(_BLOCK, columns).max(axis=0), count)
        scores = scores[scores >= bound]
    found: np.float32 = np.partition(scores, len(scores) - count)[len(scores) - count]
    return found


def _nucleus(weights: FloatArray, top_p: float) -> IntArray:
    """Places, ascending, of the fewest likeliest tokens that have a probability of `top_p` together.

    The largest weight is 1.
    """
    total = float(weights.sum(dtype=np.float64))
    outside = (1 - top_p) * total
    # Only tokens above a border need an order: the first one that enough is above of. Tokens below an even share of
    # what stays outside are outside all together.
    for border in (*_BORDERS, outside / len(weights)):
        places = np.flatnonzero(weights >= border)
        if weights[places].sum(dtype=np.float64) >= total - outside:
            break
    found = weights[places]
    falling = np.sort(found)[::-1]
    # A token stays where the mass before it, by descending probability, has not reached top_p yet.
    before = np.cumsum(falling, dtype=np.float64) - falling
    count = max(1, int(np.searchsorted(before, total - outside)))
    stay = found > falling[count - 1]
    stay[np.flatnonzero(found == falling[count - 1])[: count - np.count_nonzero(stay)]] = True
    nucleus: IntArray = places[stay]
    return nucleus
