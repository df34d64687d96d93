"""Hostile files of labelled images and labels: refused with one message before much memory is allocated."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tidal.errors import InvalidArgument
from tidal_builders.otas.training.images import read_images, read_labels


def member(shape: str, content: bytes = b"") -> bytes:
    """An .npy file with a shape in its header."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def refused(path: Path) -> str:
    with pytest.raises(InvalidArgument) as caught:
        read_images(path)
    return str(caught.value)


def test_an_archive_beyond_the_limits(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.npz", labels=member("(1,)", bytes(1)))
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 0xFFFFFFF0)  # size of the member, in the directory
    path.write_bytes(bytes(content))
    many = archive(tmp_path / "many.npz", **{f"a{number}": member("(1,)", bytes(1)) for number in range(101)})
    assert "accepted: up to 100 arrays of 8589934592 bytes" in refused(many)
    assert "contains no labelled images" in refused(path)


@pytest.mark.parametrize("shape", ["(1099511627776,)", "(4611686018427387904, 4)", "(-1,)", "1"])
def test_an_array_with_a_false_shape(tmp_path: Path, shape: str) -> None:
    path = archive(tmp_path / "x.npz", labels=member(shape, bytes(4)), images=member("(1,1,1)", bytes(1)))
    message = refused(path)
    assert "contains no labelled images" in message or "larger than the memory" in message


def test_files_that_are_not_archives(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    damaged = archive(tmp_path / "whole.npz", labels=member("(1,)", bytes(1))).read_bytes()[:-30]
    for content in (b"", stream.getvalue(), b"PK\x03\x04" + bytes(100), damaged):
        (tmp_path / "x.npz").write_bytes(content)
        assert "contains no labelled images" in refused(tmp_path / "x.npz")
    os.mkfifo(tmp_path / "pipe.npz")
    assert "neither a folder nor an .npz file" in refused(tmp_path / "pipe.npz")


def test_a_pipe_among_the_images(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    os.mkfifo(tmp_path / "cats/1.png")
    assert "is not a regular file" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[" + b" " * (9 << 20) + b"]"], ids=["deep", "9 MiB"])
def test_labels_that_are_too_long_or_nested(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "labels.json").write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"labels\.json (cannot be read|has \d+ bytes; accepted are)"):
        read_labels(tmp_path / "labels.json")
