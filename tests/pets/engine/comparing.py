"""Comparison of an engine with the full model of each task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.pets.engine.conftest import VOCABULARY, Bench, Loaded
from tidal.pets.engine.contract import answer

TOLERANCE = 1e-4


def compare(
    bench: Bench, rows: Sequence[tuple[Loaded, int]], seed: int, *, extra: int = 0, types: bool = False
) -> None:
    """Run rows of (task, length), padded `extra` tokens beyond the longest, and compare each with its own model."""
    rng = np.random.default_rng(seed)
    lengths = np.asarray([length for _, length in rows])
    ids = rng.integers(4, VOCABULARY, (len(rows), lengths.max() + extra))
    type_ids = rng.integers(0, 2, ids.shape) if types else None
    found = answer(bench.engine, [loaded.task for loaded, _ in rows], ids, lengths, type_ids)
    for row, (loaded, length) in enumerate(rows):
        own_types = None if type_ids is None else type_ids[row, :length].tolist()
        expected = loaded.truth.logits(ids[row, :length].tolist(), own_types)
        np.testing.assert_allclose(found[row], expected, atol=TOLERANCE, rtol=0)
