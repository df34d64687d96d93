"""The next tokens of a batch: all rows of a decode step together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidal.flover.sampling.draw import UNDEFINED, draw_tokens
from tidal.flover.sampling.history import FloatArray, IntArray
from tidal.flover.sampling.sampler import Sampler
from tidal.flover.sampling.scores import adjust


def sample_tokens(logits: FloatArray, samplers: Sequence[Sampler]) -> IntArray:
    """Return the next token of every row.

    Args:
        logits: Logits, [rows, vocabulary]; not modified.
        samplers: Sampler of each row; those that sample draw at least one random number each.

    Returns:
        Token ids, [rows] int64; `UNDEFINED` where logits are NaN or all infinite, or no token is allowed.
    """
    tokens = np.empty(len(samplers), np.int64)
    adjusted = [row for row, each in enumerate(samplers) if each.adjusts]
    if not adjusted:
        _select(logits, samplers, tokens, range(len(samplers)))
    else:
        plain = sorted(set(range(len(samplers))).difference(adjusted))
        _select(logits, samplers, tokens, plain)
        scores = logits[adjusted]
        own, chosen = [samplers[row] for row in adjusted], np.empty(len(adjusted), np.int64)
        adjust(scores, own)
        _select(scores, own, chosen, range(len(own)))
        defined = np.isfinite(scores[np.arange(len(own)), np.maximum(chosen, 0)])
        tokens[adjusted] = np.where(defined, chosen, UNDEFINED)
    best = logits[np.arange(len(samplers)), np.maximum(tokens, 0)]
    tokens[~np.isfinite(best)] = UNDEFINED  # argmax returns the index of a NaN
    for sampler, token in zip(samplers, tokens.tolist(), strict=True):
        if token != UNDEFINED:
            sampler.record(token)
    return tokens


def _select(scores: FloatArray, samplers: Sequence[Sampler], tokens: IntArray, rows: Sequence[int]) -> None:
    """Write the token of each of some rows."""
    greedy = [row for row in rows if samplers[row].greedy]
    if len(greedy) == len(scores):
        scores.argmax(axis=1, out=tokens)
        return
    for row in greedy:
        tokens[row] = scores[row].argmax()
    drawn = [row for row in rows if not samplers[row].greedy]
    if drawn:
        tokens[drawn] = draw_tokens(scores, drawn, [samplers[row] for row in drawn])
