"""Output of a run: a memory-mapped array that is written in place, and becomes the output when it is complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from tidal_client.bulk.texts import TextFile
from tidal_client.errors import InvalidArgument
from tidal_client.results import Array

#: Suffixes of outputs.
SUFFIXES: Final = (".npy", ".parquet")
_PARQUET_ROWS: Final = 8192
_open_memmap: Any = np.lib.format.open_memmap  # numpy has no types for it


def create(path: Path, shape: tuple[int, int], dtype: np.dtype[np.generic]) -> Array:
    """Create a memory-mapped .npy file.

    Args:
        path: File to create.
        shape: Texts and elements of a vector.
        dtype: Element type.

    Raises:
        OSError: The disk has not enough space for it; writing to a mapping would end the process.
    """
    array: Array = _open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def reopen(path: Path, texts: int) -> Array:
    """Open the array of an interrupted run.

    Raises:
        InvalidArgument: The file is missing, or is not such an array.
    """
    try:
        array: Array = _open_memmap(path, mode="r+")
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path}: cannot continue with it: {error}; delete the state to start again") from None
    if array.ndim != 2 or len(array) != texts:
        raise InvalidArgument(f"{path}: has shape {list(array.shape)}; expected {texts} rows: delete the state")
    return array


def finish(partial: Path, out: Path, texts: TextFile) -> None:
    """Make a complete array the output: rename it, or write it as Parquet with the texts and rename that.

    Args:
        partial: Complete array.
        out: Path of the output, with one of `SUFFIXES`.
        texts: Texts of the rows.
    """
    if out.suffix == ".parquet":
        written = out.with_name(f"{out.name}.new")
        _write_parquet(written, np.load(partial, mmap_mode="r"), texts)
        written.replace(out)
        partial.unlink()
    else:
        partial.replace(out)


def _write_parquet(path: Path, array: Array, texts: TextFile) -> None:
    """Write the columns `text` and `embedding`, in row groups of bounded size."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    element = arrow.from_numpy_dtype(array.dtype)
    width = array.shape[1]
    schema = arrow.schema([("text", arrow.string()), ("embedding", arrow.list_(element, width))])
    with parquet.ParquetWriter(path, schema) as writer:
        for start, group in _groups(texts.read()):
            values = arrow.array(array[start : start + len(group)].reshape(-1), element)
            vectors = arrow.FixedSizeListArray.from_arrays(values, width)
            writer.write_table(arrow.table([arrow.array(group, arrow.string()), vectors], schema))


def _groups(texts: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield texts in groups, each with the index of its first one."""
    group, start = list[str](), 0
    for text in texts:
        group.append(text)
        if len(group) == _PARQUET_ROWS:
            yield start, group
            group, start = [], start + len(group)
    if group:
        yield start, group
