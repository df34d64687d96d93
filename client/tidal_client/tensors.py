"""Tensors as Triton's protocols carry them: datatype, shape and bytes. Imported by the transports."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from tidal_client.errors import InvalidArgument
from tidal_client.results import Array

# Comparing a dtype with each of numpy's takes 3 µs.
_datatype = lru_cache(64)(np_to_triton_dtype)
_dtype = lru_cache(64)(triton_to_np_dtype)
_LENGTH = struct.Struct("<I")


@dataclass(slots=True)
class Tensor:
    """An input of a request."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    content: bytes


def input_tensors(inputs: Mapping[str, Array]) -> Iterator[Tensor]:
    """Yield the tensors of a request.

    Args:
        inputs: Arrays by input name.

    Raises:
        InvalidArgument: Triton has no datatype for an array, or a text is not valid Unicode.
    """
    for name, value in inputs.items():
        array = np.asarray(value)
        if array.dtype.kind == "U":
            array = array.astype(np.object_)
        datatype = _datatype(array.dtype)
        if datatype is None:
            raise InvalidArgument(f"input '{name}': Triton has no datatype for numpy's {array.dtype}")
        try:
            content = _join_texts(array) if datatype == "BYTES" else array.tobytes()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"input '{name}': not valid Unicode: {error.reason}") from None
        yield Tensor(name, datatype, array.shape, content)


def output_array(datatype: str, shape: Sequence[int], content: bytes) -> Array:
    """Return the array of an output tensor, read-only except for texts, which become `bytes`.

    Args:
        datatype: Triton datatype, such as ``FP32`` or ``BYTES``.
        shape: Shape of the tensor.
        content: Its elements in row-major order; texts are preceded by their lengths.
    """
    if datatype == "BYTES":
        return np.array(_split_texts(content), np.object_).reshape(shape)
    return np.frombuffer(content, _dtype(datatype)).reshape(shape)


def _join_texts(array: Array) -> bytes:
    parts = []
    for element in array.ravel().tolist():
        text = element if isinstance(element, bytes) else str(element).encode()
        parts.append(_LENGTH.pack(len(text)))
        parts.append(text)
    return b"".join(parts)


def _split_texts(content: bytes) -> list[bytes]:
    texts, start = [], 0
    while start < len(content):
        (length,) = _LENGTH.unpack_from(content, start)
        start += _LENGTH.size + length
        texts.append(content[start - length : start])
    return texts
