"""Arrays written to a file, also on a full disk."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import numpy as np
import pytest

from tidal_builders.arrays import write_arrays


def test_written_arrays_are_read_back(tmp_path: Path) -> None:
    write_arrays(tmp_path / "arrays.npz", {"0/ids": np.arange(3), "names": np.array(["a", "ö"])})
    with np.load(tmp_path / "arrays.npz") as found:
        assert found["0/ids"].tolist() == [0, 1, 2]
        assert found["names"].tolist() == ["a", "ö"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_error() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # pytest makes one of an error in a destructor
        with pytest.raises(OSError, match="No space left"):
            write_arrays(Path("/dev/full"), {"zeros": np.zeros(1 << 20)})
        gc.collect()
