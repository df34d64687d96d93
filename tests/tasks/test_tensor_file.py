"""Reading and writing safetensors files within limits: the format, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.errors import InvalidArgument
from tidal.tensor_file import map_tensors, pack_tensors, parse_tensors, read_bounded

TENSORS = {
    "a/values": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b/half": np.ones(3, np.float16),
    "c/bytes": np.arange(5, dtype=np.uint8),
    "d/none": np.zeros((0, 4), np.float32),
    "e/wide": np.asarray([1, 2], np.uint32),
}


def file_of(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: Any = "F32", shape: Any = (1,), begin: Any = 0, end: Any = 4) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_the_safetensors_library_reads_packed_tensors() -> None:
    found = safetensors.numpy.load(pack_tensors(TENSORS))
    assert found.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_reads_files_of_the_safetensors_library() -> None:
    found = parse_tensors(safetensors.numpy.save(TENSORS, {"made": "by a test"}), "x")
    for name, array in TENSORS.items():
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


def test_the_same_arrays_give_the_same_file() -> None:
    assert pack_tensors(TENSORS) == pack_tensors(dict(reversed(TENSORS.items())))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "x is truncated: 0 bytes are not a safetensors file"),
        (b"\x80\x04\x95pickle", "is not a safetensors file, or its header of"),
        (file_of({}, length=1 << 62), "is not a safetensors file, or its header of"),
        (file_of({}, length=100), "is truncated: its header takes 100 bytes, the file has 10"),
        (file_of(b"\xff\xff"), "a header that is not valid JSON"),
        (file_of(b"[" * 100_000), "a header that is not valid JSON"),
        (file_of(b'{"a":1,"a":1}'), "not valid JSON: a name occurs twice"),
        (file_of([]), "is not a valid safetensors file: invalid JSON in header: invalid type: sequence"),
        (file_of({"a": 1}), "is not a valid safetensors file: invalid JSON in header: invalid type: integer `1`"),
        (file_of({"a": entry("I64", (1,), 0, 8)}, bytes(8)), "'a' has the type I64; accepted: F32, F16, U32, U16, U8"),
        (file_of({"a": entry(["F32"])}, bytes(4)), "is not a valid safetensors file: invalid JSON in header"),
        (
            file_of({"a": entry(shape=(-1,))}, bytes(4)),
            "invalid JSON in header: invalid value",
        ),
        (
            file_of({"a": entry(shape=(True,))}, bytes(4)),
            "invalid JSON in header: invalid type",
        ),
        (file_of({"a": entry(shape=(1,) * 5)}, bytes(4)), "'a' has 5 dimensions; accepted are up to 4"),
        (file_of({"a": entry(shape=(1 << 40, 1 << 40))}, bytes(4)), "is not a valid safetensors file: overflow"),
        (file_of({"a": entry(shape=(0, 1 << 62), end=0)}, b""), "accepted are up to 1099511627776 elements"),
        (file_of({"a": entry(shape=(1 << 30, 4))}, bytes(4)), "is not a valid safetensors file: invalid shape"),
        (file_of({"a": entry(end=8)}, bytes(4)), "is not a valid safetensors file: invalid shape"),
        (
            file_of({"a": entry(begin=4, end=0)}, bytes(4)),
            "invalid offset for tensor `a`",
        ),
        (
            file_of({"a": entry(begin=-4, end=0)}, bytes(4)),
            "invalid JSON in header: invalid value",
        ),
        (file_of({"a": entry(), "b": entry()}, bytes(4)), "is not a valid safetensors file: invalid offset for tensor"),
        (file_of({"a": entry(begin=4, end=8)}, bytes(8)), "is not a valid safetensors file: invalid offset for tensor"),
        (
            file_of({"a": entry()}, bytes(9)),
            "incomplete metadata, file not fully covered",
        ),
        (
            file_of({str(i): entry(shape=(0,), end=0) for i in range(10_001)}),
            "holds 10001 tensors; accepted are at most",
        ),
    ],
)
def test_invalid_files_are_refused(content: bytes, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_tensors(content, "x")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is truncated: 0 bytes are not a safetensors file"),
        (file_of({}, length=1 << 62), "is not a safetensors file, or its header of"),
        (file_of(b'{"a":1,"a":1}'), "not valid JSON: a name occurs twice"),
        (file_of({"a": entry("I64", (1,), 0, 8)}, bytes(8)), "'a' has the type I64; accepted: F32, F16, U32, U16, U8"),
        (file_of({"a": entry(end=8)}, bytes(4)), "is not a valid safetensors file: invalid shape"),
        (file_of({"a": entry()}, bytes(9)), "is not a valid safetensors file: incomplete metadata"),
    ],
)
def test_invalid_files_are_not_mapped(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InvalidArgument) as caught:
        map_tensors(tmp_path / "x")
    assert reason in str(caught.value)


def test_mapped_arrays_equal_the_written_ones(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(pack_tensors(TENSORS))
    found = map_tensors(tmp_path / "x")
    assert found.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert not found[name].flags.writeable
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_strided_arrays_are_written_by_their_values() -> None:
    """The library writes memory as it is laid out."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    np.testing.assert_array_equal(parse_tensors(pack_tensors({"a": array}), "x")["a"], array)


def test_parsed_arrays_are_copies() -> None:
    content = pack_tensors(TENSORS)
    whole = np.frombuffer(content, np.uint8)
    assert not any(np.shares_memory(array, whole) for array in parse_tensors(content, "x").values())


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_files_are_refused_or_stay_within_their_bytes(data: st.DataObject) -> None:
    content = bytearray(pack_tensors(TENSORS))
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    kept = data.draw(st.integers(0, len(content)))
    try:
        found = parse_tensors(bytes(content[:kept]), "x")
    except InvalidArgument:
        return
    assert kept == len(content)  # every truncation is refused
    assert sum(array.nbytes for array in found.values()) < len(content)


class TestReading:
    def test_is_bounded(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(bytes(100))
        assert read_bounded(tmp_path / "x", 100) == bytes(100)
        with pytest.raises(InvalidArgument, match="has 100 bytes; accepted are at most 99"):
            read_bounded(tmp_path / "x", 99)

    def test_refuses_other_than_regular_files(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        for name in ("pipe", "."):
            with pytest.raises(InvalidArgument, match="is not a regular file"):
                read_bounded(tmp_path / name, 100)
        with pytest.raises(InvalidArgument, match="cannot be read: No such file"):
            read_bounded(tmp_path / "absent", 100)
