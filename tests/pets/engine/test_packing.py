"""Packed rows are their real tokens in order, and unpacked values are where they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.pets import tiny_base
from tidal.errors import Unsupported
from tidal.pets.engine.description import DESCRIPTION_FILE
from tidal.pets.manifest import ENGINE_FOLDER
from tidal.pets.openvino_engine.engine import open_openvino_engine
from tidal.pets.openvino_engine.packing import PackedRows


@given(st.lists(st.integers(1, 20), min_size=1, max_size=9), st.integers(0, 3))
def test_tokens_are_in_order_and_come_back(lengths: list[int], more: int) -> None:
    padded = max(lengths) + more
    values = np.arange(1, len(lengths) * padded + 1, dtype=np.int32).reshape(len(lengths), padded)
    packed = PackedRows.of(np.array(lengths), padded)
    real = [values[row, at] for row, length in enumerate(lengths) for at in range(length)]
    found = packed.pack(values)
    assert found.shape == packed.positions.shape == (1, packed.tokens)
    assert packed.tokens % 8 == 0
    assert packed.tokens - len(real) < 8
    assert found[0].tolist() == real + [0] * (packed.tokens - len(real))
    positions = [at for length in lengths for at in range(length)]
    assert packed.positions[0].tolist() == positions + list(range(packed.tokens - len(real)))
    assert packed.lengths.sum() == packed.tokens
    assert packed.first.tolist() == [sum(packed.lengths[:row]) for row in range(len(packed.lengths))]
    back = packed.unpack(np.stack([found[0], -found[0]], axis=1).astype(np.float32))
    for row, length in enumerate(lengths):
        assert back[row, :length, 0].tolist() == values[row, :length].tolist()
        assert back[row, :length, 1].tolist() == (-values[row, :length]).tolist()
        assert not back[row, length:].any()


def test_a_graph_of_an_earlier_release_is_refused(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    base = tiny_base(tmp_path_factory)
    folder = shutil.copytree(base.repository / base.name / "1" / ENGINE_FOLDER, tmp_path / "engine")
    description = json.loads((folder / DESCRIPTION_FILE).read_text())
    del description["packed"]
    (folder / DESCRIPTION_FILE).write_text(json.dumps(description))
    with pytest.raises(Unsupported, match="earlier release, whose graphs pad: build the model again"):
        open_openvino_engine(folder, threads=1)
