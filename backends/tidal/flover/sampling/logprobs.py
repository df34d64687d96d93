"""Log probabilities of tokens under the model: of those generated, and of the most likely ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tidal.flover.sampling.history import FloatArray, IntArray


class TokenLogprobs(NamedTuple):
    """Log probabilities after one token, of the model's own distribution at temperature 1.

    Attributes:
        logprob: Log probability of the token.
        top_ids: Ids of the most likely tokens, the most likely first, [top].
        top: Their log probabilities, [top].
    """

    logprob: float
    top_ids: IntArray
    top: FloatArray


def token_logprobs(logits: FloatArray, tokens: IntArray, tops: Sequence[int]) -> list[TokenLogprobs]:
    """Return the log probabilities of the next token of every row.

    Args:
        logits: Logits, [rows, vocabulary].
        tokens: Token of each row, [rows].
        tops: Number of most likely tokens of each row.
    """
    shifted = logits - logits.max(axis=1, keepdims=True)
    totals = np.log(np.exp(shifted).sum(axis=1, dtype=np.float64)).astype(np.float32)
    found = []
    for row, (token, top) in enumerate(zip(tokens.tolist(), tops, strict=True)):
        scores = shifted[row]
        ids = np.argpartition(scores, len(scores) - top)[len(scores) - top :] if top else np.zeros(0, np.int64)
        ids = ids[np.lexsort((ids, -scores[ids]))]
        found.append(TokenLogprobs(float(scores[token] - totals[row]), ids, scores[ids] - totals[row]))
    return found
