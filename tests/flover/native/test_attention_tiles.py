"""Attention in tiles compared with the plain softmax in float64, within a bound on the rounding of float32."""

from __future__ import annotations

import itertools
import math
import shutil

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.flover.native.levels import levels
from tests.flover.native.test_kernels import _form
from tidal.flover.memory.buffers import KeyValueBuffers
from tidal.flover.models.attention import NativeAttention
from tidal.flover.native import library
from tidal.flover.native.tiling import MATRIX_LEVEL

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="the library is compiled with g++"),
    pytest.mark.slow,
    pytest.mark.usefixtures("native_library"),
]

_UNIT = 2.0**-24  # rounding of float32
_SPLIT = 64  # units by which the level of AMX rounds queries and weights beside keys and values of bfloat16
_TILE = 64  # keys of a tile


def plain(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, window: int | None, cap: float | None,
    split: int = 0,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return attention of one head in float64, and a bound on its error in float32.

    Args:
        queries: Queries at positions from `start` on, [rows, size].
        keys: Keys, [tokens, size].
        values: Values, [tokens, size].
        start: Position of the first query.
        window: Number of last positions that a query attends to; None: all.
        cap: Cap of scores; None: none.
        split: Units by which queries and weights are rounded further.
    """
    queries, keys, values = queries.double(), keys.double(), values.double()
    size, scale = queries.shape[-1], 1 / math.sqrt(queries.shape[-1])
    places, own = torch.arange(len(keys)), torch.arange(start, start + len(queries))[:, None]
    hidden = (places > own) | (places <= own - (window or len(keys)))
    scores = queries @ keys.T * scale
    scores = (scores if cap is None else cap * torch.tanh(scores / cap)).masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1)
    # A score is a sum of `size` products of rounded factors, times a scale: it is off by less than (size + 6) units of
    # the sum of their sizes. Its weight, e^(score - largest), is off by twice the largest such error and by one unit
    # for the difference, relative to the distance; the exponential by 4; and each tile scales sums once more, by a
    # factor that is off by as much. A weighted mean is off by twice the relative error of weights, and by that of a
    # sum.
    sizes = (queries.abs() @ keys.abs().T * scale).masked_fill(hidden, 0).amax(-1, keepdim=True)
    distance = (scores.amax(-1, keepdim=True) - scores.masked_fill(hidden, torch.inf).amin(-1, keepdim=True)).clamp(
        max=90
    )
    tiles = math.ceil(len(keys) / _TILE)
    # The hyperbolic tangent is off by 8 units at most, and does not increase other errors.
    relative = _UNIT * (2 * (size + 6 + split) * sizes + distance + 4 + split + 16 * (cap or 0)) + tiles * _UNIT * 6
    bound = (2 * relative + (len(keys) / 4 + size + tiles) * _UNIT) * (weights @ values.abs()) + 1e-30
    return weights @ values, bound


@settings(deadline=None, max_examples=15)
@example(
    seed=1, kv_heads=1, group=1, size=64, start=0, rows=300, dtype=torch.float32, sharp=30.0, threads=1, window=None,
    cap=None,
)  # fmt: skip
@example(
    seed=2, kv_heads=2, group=3, size=80, start=500, rows=130, dtype=torch.bfloat16, sharp=1.0, threads=2, window=100,
    cap=2.0,
)  # fmt: skip
@example(
    seed=4, kv_heads=2, group=2, size=72, start=100, rows=150, dtype=torch.int8, sharp=1.0, threads=2, window=90,
    cap=2.0,
)  # fmt: skip
@example(
    seed=5, kv_heads=2, group=3, size=64, start=200, rows=150, dtype=torch.bfloat16, sharp=1.0, threads=2, window=None,
    cap=None,
)  # fmt: skip
@example(
    seed=6, kv_heads=1, group=1, size=80, start=0, rows=130, dtype=torch.bfloat16, sharp=30.0, threads=1, window=None,
    cap=None,
)  # fmt: skip
@example(
    seed=7, kv_heads=3, group=2, size=10, start=290, rows=5, dtype=torch.bfloat16, sharp=1.0, threads=2, window=None,
    cap=None,
)  # fmt: skip
@example(
    seed=8, kv_heads=1, group=70, size=128, start=129, rows=9, dtype=torch.bfloat16, sharp=0.1, threads=1, window=None,
    cap=None,
)  # fmt: skip
@example(
    seed=3, kv_heads=1, group=2, size=16, start=130, rows=150, dtype=torch.float32, sharp=1.0, threads=1, window=1,
    cap=None,
)  # fmt: skip
@given(
    seed=st.integers(0, 2**32 - 1),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 8, 70]),
    size=st.sampled_from([4, 10, 16, 64, 72, 80, 128]),
    start=st.integers(0, 300),
    rows=st.integers(1, 150),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int8]),
    sharp=st.sampled_from([0.1, 1.0, 30.0]),
    threads=st.integers(1, 3),
    window=st.none() | st.sampled_from([1, 2, 63, 64, 65, 200]),
    cap=st.none() | st.sampled_from([0.5, 20.0]),
)
def test_prompts_are_attended_within_the_rounding_of_float32(
    seed: int,
    kv_heads: int,
    group: int,
    size: int,
    start: int,
    rows: int,
    dtype: torch.dtype,
    sharp: float,
    threads: int,
    window: int | None,
    cap: float | None,
) -> None:
    form, slot, loaded = _form(kv_heads, group, size, windows=(window,), score_cap=cap), 1, library.library()
    assert loaded is not None
    draw = torch.Generator().manual_seed(seed)
    before = torch.randn(3, 2 * kv_heads, start + rows + 5, size, generator=draw)
    made = torch.randn(rows, form.heads + 2 * kv_heads, size, generator=draw)
    made[:, : form.heads] *= sharp
    torch.set_num_threads(threads)
    for level in levels():
        library.choose_kernels(level)
        buffers = KeyValueBuffers(form, 3, start + rows + 5, dtype, torch.device("cpu"))
        fill(buffers, before)
        found = NativeAttention(form, buffers, loaded).prefill(slot, start, start + rows)(0, made)
        written = made[:, form.heads :].transpose(0, 1)
        held = buffers.layers[0][slot, :, : start + rows].float()
        if dtype == torch.int8:
            scales = buffers.scales[0][slot, :, : start + rows, None]
            # The largest number of a token's head is 127, and no other is off by more than half a step.
            largest = written.abs().amax(-1, keepdim=True)
            torch.testing.assert_close(scales[:, start:], largest / 127, rtol=1e-6, atol=0)
            assert bool(((held * scales)[:, start:] - written).abs().le(scales[:, start:] * 0.50001).all())
            held = held.double() * scales.double()
        else:
            assert torch.equal(held[:, start:], written.to(dtype).float())
        keys, values = held.chunk(2)
        for head in range(form.heads):
            split = _SPLIT if level == MATRIX_LEVEL and dtype == torch.bfloat16 else 0
            wanted, bound = plain(made[:, head], keys[head // group], values[head // group], start, window, cap, split)
            error = (found.view(rows, form.heads, size)[:, head] - wanted).abs()
            assert bool((error <= bound).all()), (level, head, float((error / bound).max()))


def fill(buffers: KeyValueBuffers, numbers: torch.Tensor) -> None:
    """Write numbers [slots, 2 * kv_heads, tokens, size] to all slots."""
    tokens = numbers.shape[2]
    if buffers.scales:
        scales = buffers.scales[0][:, :, :tokens]
        scales.copy_(numbers.abs().amax(-1) / 127)
        numbers = (numbers / scales[..., None]).round()
    buffers.layers[0][:, :, :tokens].copy_(numbers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_rows_of_several_slots_in_any_order(dtype: torch.dtype) -> None:
    """A mixed pass: decode rows, long chunks and short ones, each attended like by itself."""
    form, loaded = _form(2, 2, 16), library.library()
    assert loaded is not None
    draw = torch.Generator().manual_seed(0)
    before = torch.randn(6, 4, 200, 16, generator=draw)
    parts = [(0, 90, 1), (3, 10, 130), (1, 17, 1), (2, 0, 3), (5, 64, 64), (4, 199, 1)]
    made = torch.randn(sum(rows for *_, rows in parts), 8, 16, generator=draw)
    slots = torch.tensor([slot for slot, _, rows in parts for _ in range(rows)])
    positions = torch.from_numpy(np.concatenate([np.arange(start, start + rows) for _, start, rows in parts]))
    for level in levels():
        library.choose_kernels(level)
        together, alone = (KeyValueBuffers(form, 6, 200, dtype, torch.device("cpu")) for _ in range(2))
        for each in (together, alone):
            fill(each, before)
        found = NativeAttention(form, together, loaded)._rows(slots, positions)(0, made)
        first = 0
        for slot, start, rows in parts:
            attend = NativeAttention(form, alone, loaded).prefill(slot, start, start + rows)
            assert torch.equal(found[first : first + rows], attend(0, made[first : first + rows])), (level, slot)
            first += rows


def test_a_row_that_is_not_finite_has_no_numbers_in_its_outputs() -> None:
    form, loaded = _form(1, 1, 16), library.library()
    assert loaded is not None
    made = torch.randn(40, 3, 16)
    made[20, 0, 3] = torch.nan
    for level in levels():
        library.choose_kernels(level)
        buffers = KeyValueBuffers(form, 1, 40, torch.float32, torch.device("cpu"))
        found = NativeAttention(form, buffers, loaded).prefill(0, 0, 40)(0, made)
        assert bool(found[20].isnan().all())
        assert bool(found[[*range(20), *range(21, 40)]].isfinite().all())


@pytest.mark.parametrize("rows", [1, 40])
def test_keys_of_integers_that_are_not_finite_have_no_numbers_in_outputs(rows: int) -> None:
    form, loaded = _form(1, 1, 20), library.library()
    assert loaded is not None
    for level, wrong in itertools.product(levels(), (torch.nan, torch.inf, -torch.inf)):
        for place in (3, 19):
            library.choose_kernels(level)
            buffers = KeyValueBuffers(form, 1, 60, torch.int8, torch.device("cpu"))
            made = torch.randn(rows, 3, 20)
            attend = NativeAttention(form, buffers, loaded)
            assert bool(attend.prefill(0, 0, rows)(0, made).isfinite().all())
            made[0, 1, place] = wrong
            assert bool(attend.prefill(0, rows, 2 * rows if rows == 1 else rows + 10)(0, made[:10]).isnan().all())
            assert buffers.repair([60]) == (0,)
