"""Digests of weights: the name by which a task knows its base."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from tidal.tensor_file import Array


def tensor_digest(array: Array) -> str:
    """Hex SHA-256 of an array's shape and its values as float32, however they are stored."""
    values = np.ascontiguousarray(array, dtype="<f4")
    found = hashlib.sha256(repr(tuple(values.shape)).encode())
    found.update(values.reshape(-1).data)
    return found.hexdigest()


def base_digest(tensors: Mapping[str, str]) -> str:
    """Hex SHA-256 over the digests of all weights of a base, by their names."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(tensors.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
