"""Digests of weights, by which a task identifies its base model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from tidal.tensor_file import Array


def tensor_digest(array: Array) -> str:
    """Return the hex SHA-256 of an array's shape and of its values as float32, whatever type they are stored as."""
    values = np.ascontiguousarray(array, dtype="<f4")
    digest = hashlib.sha256(repr(tuple(values.shape)).encode())
    digest.update(values.reshape(-1).data)
    return digest.hexdigest()


def base_digest(tensors: Mapping[str, str]) -> str:
    """Return the hex SHA-256 of a base model.

    Args:
        tensors: Digest of each weight by name.
    """
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(tensors.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
