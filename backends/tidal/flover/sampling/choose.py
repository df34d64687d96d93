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
    sums = np.cumsum(weights, dtype=np.float64)
    return int(tokens[min(int(np.searchsorted(sums, draw * sums[-1], side="right")), len(tokens) - 1)])


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
        border = np.partition(scores, len(scores) - sampling.top_k)[len(scores) - sampling.top_k]
        tokens = np.flatnonzero(scores >= border)  # tokens as likely as the last one stay too
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


def _nucleus(weights: FloatArray, top_p: float) -> IntArray:
    """Places, ascending, of the fewest likeliest tokens that have a probability of `top_p` together."""
    outside = (1 - top_p) * float(weights.sum(dtype=np.float64))
    # Tokens below an even share of what stays outside are outside all together: only the others need an order.
    places = np.flatnonzero(weights > outside / len(weights))
    if not len(places):  # top_p so small that even the likeliest token is below it
        return np.array([int(weights.argmax())])
    order = np.argsort(-weights[places], kind="stable")
    # The mass before a token, by descending probability: it stays where that has not reached top_p yet.
    before = np.cumsum(weights[places][order], dtype=np.float64) - weights[places][order]
    stay = before < float(weights.sum(dtype=np.float64)) - outside
    stay[0] = True
    return np.sort(places[order[stay]])
