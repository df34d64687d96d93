"""Embeddings that the double of an encoder computes."""

from __future__ import annotations

from typing import Any

import numpy as np


def embedding_of(text: str, dimensions: int = 16) -> Any:
    content = text.encode()
    seed = int.from_bytes(content[:6].ljust(6, b"\0"), "big") + len(content)
    found = np.random.default_rng(seed).standard_normal(16).astype(np.float32)[:dimensions]
    return found / np.linalg.norm(found)
