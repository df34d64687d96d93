"""Tensors of a task, named `<layer>/<part>`: each is taken once and checked, and stored as float32 or float16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument
from tidal.tensor_file import Array

FloatArray = npt.NDArray[np.float32]

# Between a layer's path and the name of its part: `encoder.layer.0.output.dense/down`.
SEPARATOR = "/"
_HALF = np.finfo(np.float16)


@dataclass(frozen=True, slots=True)
class Storage:
    """Storage format of values.

    Attributes:
        half: Whether values are stored as float16, in half the bytes, rather than as float32.
    """

    half: bool = False

    def values(self, array: FloatArray) -> Array:
        """Convert an array to the storage format.

        Raises:
            InvalidArgument: A value is not finite, or is too large for float16.
        """
        if not np.isfinite(array).all():
            raise InvalidArgument("has values that are not finite")
        if not self.half:
            return np.asarray(array, np.float32)
        if array.size and np.abs(array).max() > _HALF.max:
            raise InvalidArgument(f"has values beyond float16's {_HALF.max:g}; store it as float32")
        return array.astype(np.float16)


def by_layer(tensors: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
    """Group the tensors of a task's file by layer path and part.

    Raises:
        InvalidArgument: The name of a tensor is not of the form `<layer>/<part>`.
    """
    parts: dict[str, dict[str, Array]] = {}
    for name, array in tensors.items():
        path, separator, part = name.partition(SEPARATOR)
        if not separator:
            raise InvalidArgument(f"tensor '{name[:120]}' is unknown; accepted are names like <layer>/<part>")
        parts.setdefault(path, {})[part] = array
    return parts


class StoredTensors:
    """Tensors of a task's file for one layer of the base model.

    Attributes:
        path: Path of the layer.
    """

    def __init__(self, path: str, tensors: Mapping[str, Array]) -> None:
        """Start with all tensors.

        Args:
            path: Path of the layer.
            tensors: Tensors by part.
        """
        self.path = path
        self._left = dict(tensors)

    def has(self, part: str) -> bool:
        """Whether a part exists and has not been taken."""
        return part in self._left

    def values(self, part: str, shape: tuple[int | None, ...], meaning: str) -> FloatArray:
        """Take a part of finite numbers, as float32.

        Args:
            part: Name of the part.
            shape: Expected shape; None accepts any size above 0.
            meaning: Meaning of the sizes, for the error.

        Raises:
            InvalidArgument: The part is missing, of another type or shape, or not finite; names the tensor.
        """
        array = self._take(part)
        if array.dtype not in (np.float32, np.float16):
            raise self.refuse(part, f"has type {array.dtype}; accepted: float32 and float16")
        fits = len(array.shape) == len(shape) and all(
            size == wanted if wanted is not None else size > 0 for size, wanted in zip(array.shape, shape, strict=True)
        )
        if not fits:
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            raise self.refuse(part, f"has shape {list(array.shape)}; accepted: [{sizes}], {meaning}")
        if not np.isfinite(array).all():
            raise self.refuse(part, "has values that are not finite")
        return array.astype(np.float32, copy=False)

    def octets(self, part: str) -> npt.NDArray[np.uint8]:
        """Take a part of unsigned bytes, of shape [n]; raises as `values`."""
        array = self._take(part)
        if array.dtype != np.uint8 or array.ndim != 1:
            raise self.refuse(
                part, f"has type {array.dtype} and shape {list(array.shape)}; accepted: uint8 with one dimension"
            )
        return array

    def number(self, part: str) -> float:
        """Take a part of one finite float32; raises as `values`."""
        return float(self.values(part, (1,), "one number")[0])

    def refuse(self, part: str, what: str) -> InvalidArgument:
        """Return the error about a part; `what` follows the tensor's name in the message."""
        return InvalidArgument(f"tensor '{self.path}{SEPARATOR}{part}' {what}")

    def left(self) -> list[str]:
        """Return the names of the parts that have not been taken."""
        return sorted(self._left)

    def _take(self, part: str) -> Array:
        array = self._left.pop(part, None)
        if array is None:
            raise self.refuse(part, "is missing")
        return array
