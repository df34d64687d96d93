"""Sample queries with masked words, for models that predict them; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidal_builders.samples import Row

#: Maximum number of masked words of a text. The head runs for as many tokens of every text.
MAX_MASKS = 8


def with_masks(rows: Sequence[Row], mask_id: int, special_ids: Sequence[int], seed: int) -> list[Row]:
    """Return queries of which random tokens are masked, one to `MAX_MASKS` of each.

    Args:
        rows: Queries.
        mask_id: Id of the token for masked words.
        special_ids: Ids of tokens that stay.
        seed: Seed of the random numbers.
    """
    draw = np.random.default_rng(seed)
    masked: list[Row] = []
    for row in rows:
        ids = row["input_ids"].copy()
        places = np.flatnonzero(~np.isin(ids, special_ids))
        count = min(len(places), int(draw.integers(1, MAX_MASKS + 1)))
        ids[draw.choice(places, count, replace=False)] = mask_id
        masked.append({**row, "input_ids": ids})
    return masked
