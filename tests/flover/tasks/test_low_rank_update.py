"""Low-rank updates of the native library, at every level of vector instructions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flover.native.levels import levels
from tidal.flover.native import library
from tidal.flover.tasks.low_rank_update import _NativeUpdate, low_rank_update

pytestmark = pytest.mark.skipif(library.library() is None, reason="the native library is not built")

RANKS = 13


@pytest.fixture(scope="module", autouse=True)
def _as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    library.choose_kernels("auto")
    torch.set_num_threads(threads)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(2, 6),
    inputs=st.integers(1, 150),
    outputs=st.integers(1, 150),
    threads=st.integers(1, 3),
    adding=st.booleans(),
)
def test_rows_use_the_ranks_of_their_own_task(
    seed: int, rows: int, inputs: int, outputs: int, threads: int, adding: bool
) -> None:
    """A row uses some of the ranks, or none; the unused ranks hold NaN."""
    draw = np.random.default_rng(seed)
    factors = [draw.normal(size=(2, RANKS, size)).astype(np.float32) for size in (inputs, outputs)]
    cut = sorted(draw.integers(0, RANKS + 1, 2).tolist())
    tasks = [range(cut[0]), range(*cut), None]
    ranks = [tasks[number] for number in (*draw.integers(0, 3, rows - 1).tolist(), 2)]
    for each in factors:
        each[:, cut[1] :] = np.nan
    down, up = map(torch.from_numpy, factors)
    given_rows, added = (torch.from_numpy(draw.normal(size=(rows, size))).float() for size in (inputs, outputs))
    wanted = added.double() if adding else torch.zeros(rows, outputs).double()
    for row, own in enumerate(ranks):
        if own is not None:
            begin, end = own.start, own.stop
            wanted[row] += given_rows[row].double() @ down[1, begin:end].double().T @ up[1, begin:end].double()
    torch.set_num_threads(threads)
    found = low_rank_update(ranks, down, up)
    assert isinstance(found, _NativeUpdate)
    for level in levels():
        library.choose_kernels(level)
        result = found.add(1, given_rows, added if adding else None)
        torch.testing.assert_close(result, wanted.float(), rtol=2e-5, atol=1e-4)
