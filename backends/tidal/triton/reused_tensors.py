"""Output tensors that are created once for many answers: creating one takes about 8 µs in the stub."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from tidal.answers import tensors
from tidal.requests import Array

_MAX_TENSORS = 256
_MAX_BYTES = 256


class ReusedTensors:
    """Tensors of one label or one integer, by name and value.

    A tensor is copied to shared memory at its first use and stays there, so later answers only refer to it. Triton's
    stub checks without a lock whether a tensor has been copied, so the tensors are for answers that `execute` returns,
    which one thread copies, and not for those that are sent.

    Args:
        create: Creates a tensor with a name and the values of a contiguous array.
    """

    def __init__(self, create: Callable[[str, Array], Any]) -> None:
        self._create = create
        self._tensors: dict[tuple[str, int, bytes | int], Any] = {}

    def get(self, name: str, array: Array) -> Any:
        """Return a tensor with the values of an array, a new one if the array is not a single label or integer.

        Args:
            name: Name of the output; each has one type.
            array: Values of the tensor, contiguous.
        """
        if array.size != 1:
            return self._create(name, array)
        value = array.item()
        if type(value) is not int and (type(value) is not bytes or len(value) > _MAX_BYTES):
            return self._create(name, array)
        key = (name, array.ndim, value)
        tensor = self._tensors.get(key)
        if tensor is None:
            if len(self._tensors) >= _MAX_TENSORS:
                self._tensors.clear()
            # A copy: the values of a slice would keep the arrays of its whole batch.
            tensor = self._tensors[key] = self._create(name, array.copy())
        return tensor

    def all(
        self,
        outputs: Mapping[str, Array],
        wanted: Collection[str],
        types: Mapping[str, np.dtype[Any]],
        rows: int | None,
        *,
        shared: bool,
    ) -> list[Any] | None:
        """Return all tensors of an answer from the compiled core; None if they have to be created one by one.

        Args:
            outputs: Arrays by output name.
            wanted: Names of the outputs to answer with.
            types: Declared types of the outputs.
            rows: Number of rows that each must have; None: any.
            shared: Whether the answer may share tensors with others.
        """
        return tensors(outputs, wanted, types, rows, self._create, self._tensors if shared else None)

    def clear(self) -> None:
        """Release all tensors, before Triton releases the shared memory."""
        self._tensors.clear()
