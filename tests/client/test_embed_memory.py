"""The run of `tidal embed` without a server: what it holds in memory, and when rows are written."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from testing.waiting import until
from tidal_client import Client
from tidal_client.bulk.run import Paths, embed_file
from tidal_client.bulk.state import BulkSettings
from tidal_client.bulk.texts import open_texts

DIMENSIONS, MAX_ROWS = 256, 64


class FakeClient:
    """A client whose vectors have the number of the text in each element."""

    def __init__(self) -> None:
        self.before: Any = lambda texts: None

    def max_rows(self, _model: str) -> int:
        return MAX_ROWS

    def embed(self, _model: str, texts: list[str], **_options: Any) -> Any:
        self.before(texts)
        numbers = np.array([int(text.split()[0]) for text in texts], np.float32)
        return SimpleNamespace(array=np.repeat(numbers[:, None], DIMENSIONS, axis=1))

    def close(self) -> None:
        """Nothing to close."""


def write_texts(folder: Path, count: int) -> Path:
    folder.mkdir()
    lines = (f"{number} {'x' * (number * 7 % 50)}\n" for number in range(1, count + 1))
    (folder / "texts.txt").write_text("".join(lines))
    return folder


def embed(folder: Path, client: FakeClient, count: int, *, concurrency: int = 4) -> Paths:
    paths = Paths(folder / "out.npy")
    settings = BulkSettings(count, "digest", "embedder", ("1",), None, None, "float32")
    texts = open_texts(folder / "texts.txt")
    embed_file(cast(Client, client), texts, settings, paths, concurrency=concurrency, report=lambda _: None)
    return paths


def test_memory_does_not_grow_with_the_number_of_texts(tmp_path: Path) -> None:
    peaks = []
    for count in (10_000, 60_000):
        folder = write_texts(tmp_path / str(count), count)
        tracemalloc.start()
        try:
            paths = embed(folder, FakeClient(), count)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        found = np.load(paths.out, mmap_mode="r")
        assert found.shape == (count, DIMENSIONS)
        np.testing.assert_array_equal(found[:, -1], np.arange(1, count + 1))
    # The vectors of the difference have 51 MB, its texts 1.6 MB.
    assert peaks[1] - peaks[0] < 1e6


def test_rows_are_written_as_they_come(tmp_path: Path) -> None:
    client, sent = FakeClient(), list[list[str]]()
    partial = Paths(tmp_path / "run/out.npy").partial

    def written(texts: list[str]) -> bool:
        if not partial.exists():
            return False
        rows = [int(text.split()[0]) - 1 for text in texts]
        return bool((np.load(partial, mmap_mode="r")[rows, 0] > 0).all())

    def before(texts: list[str]) -> None:
        sent.append(texts)
        if len(sent) > 2:  # with one in flight, one more may wait for a thread
            assert until(lambda: written(sent[-3]), 20)

    client.before = before
    embed(write_texts(tmp_path / "run", 6 * MAX_ROWS), client, 6 * MAX_ROWS, concurrency=1)
    assert len(sent) == 6
