"""Products with weights of 8 and 4 bits: sums of integers bit for bit, and rounded rows within their bounds."""

from __future__ import annotations

import shutil

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flover.native.levels import TILINGS, levels
from tidal.flover.models.linear import linear
from tidal.flover.models.quantized import INT8_GROUP, Quantized, quantize
from tidal.flover.models.weights import Dense
from tidal.flover.native import library
from tidal.flover.native.tiling import NEVER, Tiling

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="the library is compiled with g++"),
    pytest.mark.usefixtures("native_library"),
]

_WHOLE_ROW = 32_512  # largest integer of a row of 16 bits; 127 with 8 bits


def _integer_rows(draw: np.random.Generator, rows: int, inputs: int, group: int, largest: int) -> npt.NDArray[np.int64]:
    """Rows of integers with `largest` in each group, so that they are rounded to themselves with the scale 1."""
    values = draw.integers(-20, 21, (rows, inputs))
    for begin in range(0, inputs, group):
        at = draw.integers(begin, min(begin + group, inputs), rows)
        values[np.arange(rows), at] = largest * draw.choice([-1, 1], rows)
    return values


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    bits=st.sampled_from([8, 4]),
    group=st.sampled_from([32, 64, 128]),
    rows=st.integers(1, 70),
    inputs=st.integers(1, 200),
    outputs=st.integers(1, 130),
    tiling=TILINGS,
    threads=st.integers(1, 2),
)
def test_sums_of_integers_equal_a_slow_reference(
    seed: int, bits: int, group: int, rows: int, inputs: int, outputs: int, tiling: Tiling, threads: int
) -> None:
    draw = np.random.default_rng(seed)
    group = INT8_GROUP if bits == 8 else group
    values = draw.integers(0, 2**bits, (outputs, inputs), dtype=np.uint8)
    wide = rows < tiling.byte_rows
    given_rows = _integer_rows(draw, rows, inputs, group, _WHOLE_ROW if wide else 127)
    if bits == 8:
        weights, minimum = values.astype(np.int64) - 128, np.zeros((outputs, 1), np.int64)
        scales = torch.ones(outputs)
        stored = torch.from_numpy(values)
    else:
        groups = -(-inputs // group)
        minimum = draw.integers(-8, 1, (outputs, groups))
        weights = values.astype(np.int64) + np.repeat(minimum, group, 1)[:, :inputs]
        scales = torch.stack([torch.ones(outputs, groups), torch.from_numpy(minimum).float()], -1).bfloat16()
        padded = np.zeros((outputs, groups * group), np.uint8)
        padded[:, :inputs] = values
        stored = torch.from_numpy(padded[:, 0::2] | padded[:, 1::2] << 4)
    wanted = torch.from_numpy(given_rows @ weights.T)
    assert int(wanted.abs().max()) < 2**24  # so that float32 holds each sum exactly
    layer = linear(Dense(Quantized(stored, scales, torch.tensor([inputs])), None), None, tiling)
    torch.set_num_threads(threads)
    for level in levels():
        library.choose_kernels(level)
        assert torch.equal(layer(torch.from_numpy(given_rows).float()).long(), wanted), level


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    bits=st.sampled_from([8, 4]),
    group=st.sampled_from([32, 64, 128]),
    rows=st.integers(1, 20),
    inputs=st.integers(1, 300),
    outputs=st.integers(1, 70),
    tiling=TILINGS,
)
def test_products_are_within_the_rounding_of_rows(
    seed: int, bits: int, group: int, rows: int, inputs: int, outputs: int, tiling: Tiling
) -> None:
    draw = torch.Generator().manual_seed(seed)
    weight = quantize(torch.randn(outputs, inputs, generator=draw), bits, group)
    bias, added = torch.randn(outputs, generator=draw), torch.randn(rows, outputs, generator=draw)
    given_rows = torch.randn(rows, inputs, generator=draw) * 10 ** torch.randint(-3, 3, (rows, 1), generator=draw)
    exact = weight.dequantized().double()
    wanted = given_rows.double() @ exact.T + bias + added
    # A component is off by at most half a step, of which the largest of its group has 127 or 32,512. What float32 adds
    # is of the order of its precision times the terms.
    steps = 127 if rows >= tiling.byte_rows else _WHOLE_ROW
    bound = torch.zeros(rows, outputs, dtype=torch.double)
    for begin in range(0, inputs, weight.group):
        part = slice(begin, begin + weight.group)
        largest = given_rows[:, part].abs().amax(1, keepdim=True).double()
        bound += largest / steps / 2 * exact[:, part].abs().sum(1)
    bound += 1e-5 * (1 + given_rows.abs().sum(1, keepdim=True) * exact.abs().amax(1))
    layer = linear(Dense(weight, bias), None, tiling)
    for level in levels():
        library.choose_kernels(level)
        error = (layer(given_rows, added) - wanted).abs()
        assert bool((error <= bound).all()), (level, float((error - bound).max()))


@pytest.mark.parametrize("byte_rows", [1, NEVER])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_that_is_not_finite_has_no_numbers_in_its_outputs(bits: int, byte_rows: int) -> None:
    layer = linear(Dense(quantize(torch.randn(50, 140), bits, 64), None), None, Tiling(byte_rows=byte_rows))
    rows = torch.randn(4, 140)
    rows[1, 135], rows[2, 3] = torch.nan, torch.inf
    for level in levels():
        library.choose_kernels(level)
        found = layer(rows)
        assert bool(found[1:3].isnan().all())
        assert bool(found[[0, 3]].isfinite().all())


def test_without_the_library_integers_are_products_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidal.flover.models.linear.usable", lambda _: None)
    weight = quantize(torch.randn(30, 70), 4, 32)
    rows = torch.randn(3, 70).bfloat16()
    found = linear(Dense(weight, None))(rows).float()
    torch.testing.assert_close(found, rows.float() @ weight.dequantized().T, rtol=0.02, atol=0.1)
