"""Native kernels compared with torch, at every level of vector instructions and any sizes."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tests.flover.native.levels import TILINGS, levels
from tidal.errors import InvalidArgument, NotFound
from tidal.flover.form import Activation, DecoderForm
from tidal.flover.memory.buffers import KeyValueBuffers
from tidal.flover.models.attention import NativeAttention, TorchAttention
from tidal.flover.models.linear import _ACTIVATIONS, linear
from tidal.flover.models.quantized import quantize
from tidal.flover.models.weights import Dense
from tidal.flover.native import library
from tidal.flover.native.tiling import Tiling
from tidal.flover.native.tuning import measure_kernels
from tidal.server.diagnosis import kernels_check
from tidal.server.doctor_check import DoctorCheck

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="the library is compiled with g++"),
    pytest.mark.usefixtures("native_library"),
]

_TYPES = (torch.float32, torch.bfloat16)
_CPU = torch.device("cpu")


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 40),
    inputs=st.integers(1, 200),
    outputs=st.integers(1, 200),
    dtype=st.sampled_from(_TYPES),
    activation=st.sampled_from([None, "gelu", "gelu_new", "relu", "silu"]),
    bias=st.booleans(),
    adding=st.booleans(),
    tiling=TILINGS,
    threads=st.integers(1, 3),
)
def test_linear_layers_equal_torch(
    seed: int,
    rows: int,
    inputs: int,
    outputs: int,
    dtype: torch.dtype,
    activation: Activation | None,
    bias: bool,
    adding: bool,
    tiling: Tiling,
    threads: int,
) -> None:
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=draw).to(dtype)
    dense = Dense(weight, torch.randn(outputs, generator=draw).to(dtype) if bias else None)
    given_rows, added = torch.randn(rows, inputs, generator=draw), torch.randn(rows, outputs, generator=draw)
    wanted = given_rows.to(dtype).double() @ weight.double().T
    if dense.bias is not None:
        wanted += dense.bias.double()
    if adding:
        wanted += added
    elif activation is not None:
        wanted = _ACTIVATIONS[activation](wanted)
    torch.set_num_threads(threads)
    layer = linear(dense, activation, tiling)
    for level in levels():
        library.choose_kernels(level)
        found = layer(given_rows, added if adding else None)
        torch.testing.assert_close(found, wanted.float(), rtol=2e-5, atol=5e-5)


@pytest.mark.parametrize("panel", [32, 48, 64])
@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_a_row_does_not_depend_on_the_rows_beside_it(bits: int, panel: Literal[32, 48, 64]) -> None:
    draw = torch.Generator().manual_seed(bits)
    weight, rows = torch.randn(90, 600, generator=draw), torch.randn(340, 600, generator=draw)
    stored = quantize(weight, bits, 64) if bits < 16 else weight.to(torch.bfloat16 if bits == 16 else torch.float32)
    layer = linear(Dense(stored, None), None, Tiling(panel=panel, matrix_rows=1, integer_matrix_rows=1))
    for level in levels():
        library.choose_kernels(level)
        together = layer(rows)
        for count in (1, 7, 16, 17, 33, 64, 131):
            assert torch.equal(layer(rows[-count:]), together[-count:]), (level, count)


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_rows_that_exceed_the_cache_are_multiplied_in_parts(bits: int) -> None:
    draw = torch.Generator().manual_seed(bits)
    rows, inputs = 700, 2050  # 2.9 MB in bfloat16
    weight = torch.randn(80, inputs, generator=draw)
    stored = weight.bfloat16() if bits == 16 else quantize(weight, bits, 64)
    exact = stored.double() if isinstance(stored, torch.Tensor) else stored.dequantized().double()
    given_rows, added = torch.randn(rows, inputs, generator=draw), torch.randn(rows, 80, generator=draw)
    wanted = given_rows.bfloat16().double() @ exact.T + added
    layer = linear(Dense(stored, None), None, Tiling())
    for level in levels():
        library.choose_kernels(level)
        # Rows are rounded to bfloat16, or more finely for integers.
        torch.testing.assert_close(layer(given_rows.bfloat16().float(), added), wanted.float(), rtol=1e-4, atol=2e-2)


def _buffers(form: DecoderForm, slots: int, length: int, dtype: torch.dtype) -> KeyValueBuffers:
    buffers = KeyValueBuffers(form, slots, length, dtype, _CPU)
    for layer in buffers.layers:
        layer.normal_()
    return buffers


def _form(kv_heads: int, group: int, size: int, **fields: Any) -> DecoderForm:
    return DecoderForm(
        family="llama",
        vocabulary=1,
        layers=1,
        width=1,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=size,
        inner=1,
        positions=1,
        rotary=None,
        norm="rms",
        epsilon=1,
        activation="silu",
        **fields,
    )


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    size=st.sampled_from([4, 10, 16, 64, 72, 80]),
    slots=st.integers(1, 6),
    length=st.integers(1, 70),
    dtype=st.sampled_from(_TYPES),
    chunk=st.booleans(),
    threads=st.integers(1, 3),
    window=st.sampled_from([None, 1, 5, 40]),
    cap=st.sampled_from([None, 0.7, 30.0]),
)
def test_attention_equals_torch(
    seed: int,
    kv_heads: int,
    group: int,
    size: int,
    slots: int,
    length: int,
    dtype: torch.dtype,
    chunk: bool,
    threads: int,
    window: int | None,
    cap: float | None,
) -> None:
    torch.manual_seed(seed)
    draw = np.random.default_rng(seed)
    form = _form(kv_heads, group, size, windows=(window,), score_cap=cap, score_scale=0.3)
    before = _buffers(form, slots, length, dtype)
    torch.set_num_threads(threads)
    start = int(draw.integers(length))
    end = int(draw.integers(start, length)) + 1
    begin = int(draw.integers(slots))
    after = int(draw.integers(begin, slots)) + 1
    positions = torch.from_numpy(draw.integers(0, length, after - begin))
    made = torch.randn(end - start if chunk else len(positions), form.heads + 2 * kv_heads, size)
    # torch computes in the type of keys and values: what is compared has to be representable in it.
    if dtype == torch.bfloat16:
        made[:, : form.heads] = made[:, : form.heads].to(dtype).float()
    results = []
    for level in (None, *levels()):
        buffers = KeyValueBuffers(form, slots, length, torch.float32 if level is None else dtype, _CPU)
        buffers.layers[0][:, :, :length].copy_(before.layers[0][:, :, :length])
        if level is None:
            rounded = made.clone()
            rounded[:, form.heads :] = rounded[:, form.heads :].to(dtype).float()
            attention: TorchAttention | NativeAttention = TorchAttention(form, buffers)
        else:
            loaded = library.library()
            assert loaded is not None
            library.choose_kernels(level)
            attention, rounded = NativeAttention(form, buffers, loaded), made
        attend = attention.prefill(begin, start, end) if chunk else attention.decode(begin, after, positions, length)
        results.append((attend(0, rounded), buffers.layers[0][:, :, :length].float()))
    (wanted, kept), *others = results
    for found, held in others:
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(held, kept, rtol=0, atol=0)


_AVX2 = {"avx2", "fma"}
_AVX512 = _AVX2 | {"avx512f", "avx512dq", "avx512vl", "avx512bw"}
#: Flags that Linux lists for processors that run a level, best level first.
_REQUIRED = {
    "amx": _AVX512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
    "avx512bf16": _AVX512 | {"avx512_vnni", "avx512_bf16"},
    "avx512vnni": _AVX512 | {"avx512_vnni"},
    "avx512": _AVX512,
    "avx2": _AVX2,
    "plain": set[str](),
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels are those of x86-64")
def test_levels_are_those_whose_instructions_the_processor_has() -> None:
    cpuinfo = Path("/proc/cpuinfo").read_text()
    flags = set(next(line for line in cpuinfo.splitlines() if line.startswith("flags")).split())
    expected = [level for level, required in _REQUIRED.items() if required <= flags]
    assert levels() == expected
    for level in expected:
        library.choose_kernels(level)
        assert library.kernel_level() == level
    library.choose_kernels("auto")
    assert library.kernel_level() == expected[0]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="kernels 'sse9' are not available"):
        library.choose_kernels("sse9")


def test_the_doctor_reports_whether_they_are_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library.choose_kernels("auto")
    choice = measure_kernels(len(os.sched_getaffinity(0)))
    found = kernels_check()
    assert found == DoctorCheck("decoder kernels", "ok", f"{library.library_path()}; {choice}")
    assert f"; {library.kernel_level()}" in found.found
    monkeypatch.setattr(library, "library_path", lambda: tmp_path / "none.so")
    found = kernels_check()
    assert (found.verdict, found.advice) == ("note", "python -m tidal.flover.native.build")


def test_without_the_library_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise NotFound("no sources")

    monkeypatch.setattr(library, "library_path", missing)
    library.library.cache_clear()
    try:
        assert library.kernel_level() is None
        weight = torch.randn(5, 3)
        rows = torch.randn(2, 3)
        torch.testing.assert_close(linear(Dense(weight, None))(rows), functional.linear(rows, weight))
    finally:
        library.library.cache_clear()
