"""Named arrays in a safetensors file, read as data that anyone may have made: no pickle, no trust in its header."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument

Array = npt.NDArray[Any]

# Types of numbers that Tidal's own files hold, by their names in the format, which is little-endian.
_TYPES = {"F32": "<f4", "F16": "<f2", "U32": "<u4", "U16": "<u2", "U8": "|u1"}
_NAMES = {np.dtype(code): name for name, code in _TYPES.items()}
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 4 << 20
_MOST_TENSORS = 10_000
_MOST_DIMENSIONS = 4
_MOST_ELEMENTS = 1 << 40


def read_bounded(path: Path, most: int) -> bytes:
    """A file's content, at most `most` bytes.

    Raises:
        InvalidArgument: it is no regular file, cannot be read, or is longer.
    """
    try:
        # Not blocking: a pipe in place of the file must not hold the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidArgument(f"{path} is not a regular file")
            if status.st_size > most:
                raise InvalidArgument(f"{path} has {status.st_size} bytes; accepted are at most {most}")
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(status.st_size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None


def parse_tensors(content: bytes | memoryview, origin: str) -> dict[str, Array]:
    """The arrays of a safetensors file, as read-only views of its content: nothing is allocated by what it claims.

    Args:
        content: the whole file.
        origin: names it in errors.

    Raises:
        InvalidArgument: truncated, malformed, over a limit, or of a type that is not accepted; says what and where.
    """
    view = memoryview(content)
    if len(view) < _LENGTH_BYTES:
        raise InvalidArgument(f"{origin} is truncated: {len(view)} bytes are no safetensors file")
    length = int.from_bytes(view[:_LENGTH_BYTES], "little")
    if length > _MOST_HEADER_BYTES:
        raise InvalidArgument(
            f"{origin} is no safetensors file, or its header of {length} bytes is longer than the {_MOST_HEADER_BYTES} "
            "accepted"
        )
    if _LENGTH_BYTES + length > len(view):
        raise InvalidArgument(f"{origin} is truncated: its header takes {length} bytes, the file has {len(view)}")
    header = _header(bytes(view[_LENGTH_BYTES : _LENGTH_BYTES + length]), origin)
    data = view[_LENGTH_BYTES + length :]
    spans: list[tuple[int, int]] = []
    tensors: dict[str, Array] = {}
    for name, entry in header.items():
        code, shape, begin, end = _entry(name, entry, len(data), origin)
        spans.append((begin, end))
        tensors[name] = np.ndarray(shape, code, data[begin:end] if begin < end else b"")
        tensors[name].flags.writeable = False
    reached = 0
    for begin, end in sorted(spans):
        if begin != reached:
            raise InvalidArgument(f"{origin} has tensors that overlap or leave bytes between them, at byte {begin}")
        reached = end
    if reached != len(data):
        raise InvalidArgument(f"{origin} has {len(data) - reached} bytes that no tensor holds")
    return tensors


def pack_tensors(tensors: Mapping[str, Array]) -> bytes:
    """A safetensors file of float32, float16 and unsigned arrays up to 32 bits; equal arrays make an equal file."""
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    at = 0
    # Widest numbers first, so that each array lies at a multiple of its own width.
    for name, array in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        content = np.ascontiguousarray(array).tobytes()
        type_name = _NAMES[array.dtype.newbyteorder("<")]
        header[name] = {"dtype": type_name, "shape": list(array.shape), "data_offsets": [at, at + len(content)]}
        parts.append(content)
        at += len(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, *parts])


def _header(text: bytes, origin: str) -> dict[str, Any]:
    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(pairs)
        if len(names) != len(pairs):
            raise ValueError("a name stands twice")
        return names

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:  # also what is no UTF-8
        raise InvalidArgument(f"{origin} has a header that is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise InvalidArgument(f"{origin} has a header that is no mapping of tensors")
    header.pop("__metadata__", None)
    if len(header) > _MOST_TENSORS:
        raise InvalidArgument(f"{origin} holds {len(header)} tensors; accepted are at most {_MOST_TENSORS}")
    return header


def _entry(name: str, entry: Any, available: int, origin: str) -> tuple[str, tuple[int, ...], int, int]:
    """Type, shape and place of a tensor, held to each other and to the bytes that are there."""
    shown = name[:120]
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise InvalidArgument(f"{origin}: tensor '{shown}' is not described by dtype, shape and data_offsets")
    code = _TYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if code is None:
        raise InvalidArgument(
            f"{origin}: tensor '{shown}' has the type {str(entry['dtype'])[:20]}; accepted: {', '.join(_TYPES)}"
        )
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _naturals(shape) or len(shape) > _MOST_DIMENSIONS:
        raise InvalidArgument(f"{origin}: tensor '{shown}' has no shape of up to {_MOST_DIMENSIONS} sizes")
    if not _naturals(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= available:
        raise InvalidArgument(f"{origin} is truncated, or tensor '{shown}' lies outside its {available} bytes of data")
    # A size of 0 hides how large the others are, which numpy then refuses.
    if math.prod(max(size, 1) for size in shape) > _MOST_ELEMENTS:
        raise InvalidArgument(f"{origin}: tensor '{shown}' has sizes beyond what a file holds: {str(shape)[:80]}")
    if math.prod(shape) * np.dtype(code).itemsize != offsets[1] - offsets[0]:
        raise InvalidArgument(
            f"{origin}: tensor '{shown}' of shape {shape} does not fill the {offsets[1] - offsets[0]} bytes it has"
        )
    return code, tuple(shape), offsets[0], offsets[1]


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
