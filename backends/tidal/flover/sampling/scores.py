"""From logits to the scores that tokens are selected by: biases, penalties and forbidden tokens.

The order is that of `transformers`: bias, repetition penalty, forbidden tokens; presence and frequency penalties, as
OpenAI defines them, follow the repetition penalty.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidal.flover.sampling.history import FloatArray
from tidal.flover.sampling.sampler import Sampler


def adjust(scores: FloatArray, samplers: Sequence[Sampler]) -> None:
    """Turn logits into scores, in place.

    Args:
        scores: Logits, [rows, vocabulary], contiguous.
        samplers: Sampler of each row.
    """
    flat, vocabulary = scores.reshape(-1), scores.shape[1]
    biased = [(row * vocabulary, each.bias) for row, each in enumerate(samplers) if each.bias is not None]
    if biased:
        flat[np.concatenate([start + ids for start, (ids, _) in biased])] += np.concatenate(
            [values for _, (_, values) in biased]
        )
    _penalise(flat, vocabulary, samplers)
    banned = [row * vocabulary + each.ending for row, each in enumerate(samplers) if each.bans_end]
    if banned:
        flat[np.concatenate(banned)] = -np.inf
    for row, each in enumerate(samplers):
        if each.constraint is not None:
            np.copyto(scores[row], -np.inf, where=~each.constraint.allowed())


def _penalise(flat: FloatArray, vocabulary: int, samplers: Sequence[Sampler]) -> None:
    rows = [(row * vocabulary, each) for row, each in enumerate(samplers) if each.history is not None]
    if not rows:
        return
    histories = [each.history for _, each in rows if each.history is not None]
    sizes = [len(history.ids) for history in histories]

    def repeated(values: list[float]) -> FloatArray:
        return np.repeat(np.array(values, np.float32), sizes)

    positions = np.concatenate([start + history.ids for (start, _), history in zip(rows, histories, strict=True)])
    counts = np.concatenate([history.counts for history in histories])
    penalty = repeated([each.params.repetition_penalty for _, each in rows])
    values = flat[positions]
    values = np.where(values < 0, values * penalty, values / penalty)
    values -= counts * repeated([each.params.frequency_penalty for _, each in rows])
    values -= (counts > 0) * repeated([each.params.presence_penalty for _, each in rows])
    flat[positions] = values
