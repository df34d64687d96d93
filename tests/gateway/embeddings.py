"""Embeddings that the double of an embedding model computes."""

from __future__ import annotations

from typing import Any

import numpy as np


def embedding(text: str, dimensions: int = 8) -> np.ndarray[Any, Any]:
    """What the double of an embedding model computes."""
    vector = np.random.default_rng(list(text.encode()) or [0]).standard_normal(8).astype(np.float32)[:dimensions]
    return np.asarray(vector / np.linalg.norm(vector))
