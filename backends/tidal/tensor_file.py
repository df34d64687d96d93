"""Named arrays in safetensors files that anyone may have written: the `safetensors` library behind limits of size.

The library checks types, shapes and offsets, so nothing is allocated by what a file claims. The limits here stand
before it, because it lacks them: it accepts headers of 100 MB, any number of tensors, and a name that occurs twice, of
which it silently takes the last. It also reads no file as views; `map_tensors` does, after the library's checks.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from tidal.errors import InvalidArgument

Array = npt.NDArray[Any]

# Types that Tidal's own files hold, by their names in the format, which is little-endian.
_CODES = {"F32": "<f4", "F16": "<f2", "U32": "<u4", "U16": "<u2", "U8": "|u1"}
_TYPES = {name: np.dtype(code) for name, code in _CODES.items()}
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 4 << 20
_MAX_TENSORS = 10_000
_MAX_DIMENSIONS = 4
# A size of 0 hides how large the others are.
_MAX_ELEMENTS = 1 << 40
_MAX_REASON_CHARACTERS = 200


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a regular file of limited size.

    Args:
        path: File to read.
        max_bytes: Largest accepted size in bytes.

    Raises:
        InvalidArgument: The path is not a regular file, cannot be read, or is larger.
    """
    try:
        descriptor = _open_regular(path, max_bytes)
        try:
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None


def parse_tensors(content: bytes, origin: str) -> dict[str, Array]:
    """Parse the content of a safetensors file.

    Args:
        content: The whole file.
        origin: Name of the file in errors.

    Returns:
        The arrays by name, each in memory of its own; together they take no more than `content`.

    Raises:
        InvalidArgument: The file is truncated, malformed, beyond a limit, or of a type that is not accepted.
    """
    _check_header(memoryview(content), origin)
    try:
        entries = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise _malformed(origin, error) from None
    tensors: dict[str, Array] = {}
    for name, entry in entries:
        kind, shape = _checked_type(name, entry["dtype"], entry["shape"], origin)
        tensors[name] = np.frombuffer(entry["data"], kind).reshape(shape)
    return tensors


def map_tensors(path: Path) -> dict[str, Array]:
    """Map the arrays of a safetensors file into memory: pages that nobody reads take none.

    Args:
        path: File that nobody truncates while its arrays are in use, as those of a published version.

    Returns:
        Read-only views of the file by name.

    Raises:
        InvalidArgument: As `parse_tensors`, and where the file cannot be read.
    """
    try:
        descriptor = _open_regular(path)
        try:
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise InvalidArgument(f"{path} is truncated: 0 bytes are not a safetensors file") from None
    view = memoryview(mapped)
    begin = _LENGTH_BYTES + _check_header(view, str(path))
    tensors: dict[str, Array] = {}
    try:
        with safetensors.safe_open(path, "numpy") as file:
            # The library accepts no file with gaps between tensors: in this order, one follows another.
            for name in file.offset_keys():
                entry = file.get_slice(name)
                kind, shape = _checked_type(name, entry.get_dtype(), entry.get_shape(), str(path))
                count = math.prod(shape)
                tensors[name] = np.frombuffer(view, kind, count, begin).reshape(shape)
                begin += count * kind.itemsize
    except (safetensors.SafetensorError, OSError, ValueError) as error:  # ValueError: replaced by a shorter file
        raise _malformed(str(path), error) from None
    return tensors


def pack_tensors(tensors: Mapping[str, Array]) -> bytes:
    """Write arrays as a safetensors file; equal arrays make an equal file, whatever their order.

    Args:
        tensors: Arrays by name, of float32, float16, or unsigned integers of up to 32 bits.
    """
    # The library writes memory as it is, whatever its strides.
    return safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in tensors.items()})


def check_tensor_file(path: Path, max_bytes: int | None = None) -> None:
    """Check a safetensors file against the limits before another program reads it.

    Args:
        path: File to check.
        max_bytes: Largest accepted size in bytes; None: any.

    Raises:
        InvalidArgument: The path is not a regular file, cannot be read, is larger, or its header is beyond a limit.
    """
    try:
        descriptor = _open_regular(path, max_bytes)
        with open(descriptor, "rb") as file:
            _check_header(memoryview(file.read(_LENGTH_BYTES + _MAX_HEADER_BYTES)), str(path))
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None


def _open_regular(path: Path, max_bytes: int | None = None) -> int:
    # Not blocking: a pipe in place of the file must not block the reader.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(f"{path} is not a regular file")
        if max_bytes is not None and status.st_size > max_bytes:
            raise InvalidArgument(f"{path} has {status.st_size} bytes; accepted are at most {max_bytes}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_header(view: memoryview, origin: str) -> int:
    """The length of a file's header in bytes, once it is within the limits and names no tensor twice."""
    if len(view) < _LENGTH_BYTES:
        raise InvalidArgument(f"{origin} is truncated: {len(view)} bytes are not a safetensors file")
    length = int.from_bytes(view[:_LENGTH_BYTES], "little")
    if length > _MAX_HEADER_BYTES:
        raise InvalidArgument(
            f"{origin} is not a safetensors file, or its header of {length} bytes is longer than the "
            f"{_MAX_HEADER_BYTES} accepted"
        )
    if _LENGTH_BYTES + length > len(view):
        raise InvalidArgument(f"{origin} is truncated: its header takes {length} bytes, the file has {len(view)}")
    try:
        header = json.loads(bytes(view[_LENGTH_BYTES : _LENGTH_BYTES + length]), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:  # ValueError: also what is not UTF-8
        raise InvalidArgument(f"{origin} has a header that is not valid JSON: {error}") from None
    if len(header) > _MAX_TENSORS:
        raise InvalidArgument(f"{origin} holds {len(header)} tensors; accepted are at most {_MAX_TENSORS}")
    return length


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name occurs twice")
    return names


def _checked_type(name: str, kind: str, shape: list[int], origin: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    shown = name[:120]
    if kind not in _TYPES:
        raise InvalidArgument(f"{origin}: tensor '{shown}' has the type {kind}; accepted: {', '.join(_TYPES)}")
    if len(shape) > _MAX_DIMENSIONS:
        raise InvalidArgument(
            f"{origin}: tensor '{shown}' has {len(shape)} dimensions; accepted are up to {_MAX_DIMENSIONS}"
        )
    if math.prod(max(size, 1) for size in shape) > _MAX_ELEMENTS:
        raise InvalidArgument(
            f"{origin}: tensor '{shown}' has the shape {str(shape)[:80]}; accepted are up to {_MAX_ELEMENTS} elements"
        )
    return _TYPES[kind], tuple(shape)


def _malformed(origin: str, error: Exception) -> InvalidArgument:
    reason = str(error).removeprefix("Error while deserializing").removeprefix(" header").removeprefix(": ")
    return InvalidArgument(f"{origin} is not a valid safetensors file: {reason[:_MAX_REASON_CHARACTERS]}")
