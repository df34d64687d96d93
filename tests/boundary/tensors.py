"""Tensors without Triton."""

from __future__ import annotations

from tidal.requests import Array


class FakeTensor:
    """A tensor that keeps the array that it was made of."""

    def __init__(self, name: str, array: Array) -> None:
        self.name = name
        self.array = array
