"""Memory of slots: when it is committed and released, moves between slots, and the removal of NaN."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testing.decoders import POSITIONS, tiny_config, tiny_model, tiny_runner
from tidal.flover.architectures import form_of
from tidal.flover.form import DecoderForm
from tidal.flover.memory.buffers import KeyValueBuffers, buffer_bytes, slot_layout
from tidal.flover.memory.mapping import PAGE_BYTES
from tidal.flover.memory.slots import SlotCopy, SlotMove

FORM = form_of(tiny_config("llama"))
# Keys of a head fill a page with 64 (float32), 128 (bfloat16) or 256 tokens.
LARGE = FORM.model_copy(update={"layers": 2, "kv_heads": 2, "head_dim": 16, "positions": 4096})
CPU = torch.device("cpu")
TYPES = (torch.float32, torch.bfloat16, torch.int8)


def make(
    slots: int = 3, max_length: int = 10, dtype: torch.dtype = torch.bfloat16, form: DecoderForm = FORM, **options: bool
) -> KeyValueBuffers:
    return KeyValueBuffers(form, slots, max_length, dtype, CPU, **options)


def resident(buffers: KeyValueBuffers) -> int:
    """Return the bytes of the slots' tensors that are in memory, as the kernel counts them."""
    # Adjacent mappings are one for the kernel, that of the scratch too, which no test but those of moves writes.
    ranges = [(each.data_ptr(), each.data_ptr() + each.nbytes) for each in (*buffers.layers, *buffers.scales)]
    pages = 0
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        for begin, end in ranges:
            pagemap.seek(begin // PAGE_BYTES * 8)
            entries = torch.frombuffer(bytearray(pagemap.read((end - begin) // PAGE_BYTES * 8)), dtype=torch.int64)
            # Present, and exclusively mapped: the page of zeros, which reading maps, is shared.
            pages += int(((entries < 0) & (entries >> 56 & 1 == 1)).sum())
    return pages * PAGE_BYTES


def write(buffers: KeyValueBuffers, slot: int, begin: int, end: int) -> None:
    for each in (*buffers.layers, *buffers.scales):
        each[slot, :, begin:end] = 1


@pytest.mark.parametrize("dtype", TYPES)
def test_the_stated_bytes_have_addresses(dtype: torch.dtype) -> None:
    buffers = make(dtype=dtype)
    tensors = [*buffers.layers, *buffers.scales]
    assert buffers.bytes == buffer_bytes(FORM, 3, 10, dtype) <= sum(each[:, :, :10].nbytes for each in tensors)
    assert all(each.is_contiguous() and each.shape[2] == buffers.layout.capacity >= 10 for each in tensors)
    assert all(each[0, 0].nbytes % PAGE_BYTES == 0 for each in buffers.layers)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("max_length", [300, 2100])
def test_memory_follows_the_tokens_written(dtype: torch.dtype, max_length: int) -> None:
    """The kernel's count equals the pages of the layout after each step."""
    buffers = make(4, max_length, dtype, LARGE)
    size = buffers.layout.pages.bytes
    assert resident(buffers) == 0
    assert not any(each.any() for each in (*buffers.layers, *buffers.scales))  # reading commits nothing
    assert resident(buffers) == 0
    write(buffers, 1, 0, 1)
    assert resident(buffers) == size(1)
    write(buffers, 1, 1, 270)
    write(buffers, 3, 0, max_length)
    assert resident(buffers) == size(270) + size(max_length)
    assert size(max_length) < 1.3 * buffers.bytes / 4 + 8 * PAGE_BYTES
    buffers.release({3: 140})
    assert resident(buffers) == size(270) + size(140)
    assert all((each[3, :, :140] == 1).all() for each in (*buffers.layers, *buffers.scales))
    assert not any(each[3, :, buffers.layout.pages.covered(140) :].any() for each in buffers.layers)
    buffers.release({1: 0, 3: 0, 2: 0})
    assert resident(buffers) == 0


@pytest.mark.parametrize("dtype", TYPES)
def test_moves_and_copies_that_release_hold_no_more_than_before(dtype: torch.dtype) -> None:
    buffers = make(4, 2100, dtype, LARGE)
    size = buffers.layout.pages.bytes
    write(buffers, 0, 0, 900)
    write(buffers, 1, 0, 30)
    buffers.move([SlotMove(0, 1, exchange=True), SlotMove(1, 3)], [900, 30, 0, 0], release=True)
    assert resident(buffers) == size(900) + size(30)
    assert all((each[3, :, :900] == 1).all() for each in buffers.layers)
    buffers.copy([SlotCopy(3, 2, 0, 500)], release=[3])
    assert resident(buffers) == size(500) + size(30)
    assert all((each[2, :, :500] == 1).all() for each in buffers.layers)


@pytest.mark.parametrize("dtype", TYPES)
def test_slots_that_are_committed_as_a_whole(dtype: torch.dtype) -> None:
    buffers = make(4, 2100, dtype, LARGE, whole=True)
    size = buffers.layout.pages.bytes
    assert (size(0), size(1)) == (0, size(2100))
    assert resident(buffers) == 0
    write(buffers, 1, 0, 2100)
    write(buffers, 3, 0, 2100)
    assert 0 < resident(buffers) <= 4 * size(1)
    buffers.release({3: 100})  # nothing: a page may have tokens of several heads
    assert all((each[3, :, :2100] == 1).all() for each in (*buffers.layers, *buffers.scales))
    buffers.release({1: 0})
    assert not any(each[1].any() for each in (*buffers.layers, *buffers.scales))
    assert all((each[3, :, :2100] == 1).all() for each in (*buffers.layers, *buffers.scales))
    buffers.release(dict.fromkeys(range(4), 0))
    assert resident(buffers) == 0


@pytest.mark.parametrize("dtype", TYPES)
def test_a_slot_is_cleared_in_parts(dtype: torch.dtype) -> None:
    buffers = make(3, 2100, dtype, LARGE, whole=True)
    # With small pages the kernel's count is that of the parts.
    for mapped in buffers._mapped.values():
        mapped._memory.madvise(mmap.MADV_NOHUGEPAGE)
    size, part = buffers.layout.pages.bytes(1), 10 * PAGE_BYTES
    write(buffers, 0, 0, buffers.layout.capacity)
    for begin in range(0, size, part):
        assert resident(buffers) == size + begin
        buffers.clear(1, begin, min(size, begin + part))
    assert resident(buffers) == 2 * size
    assert all((each[0] == 1).all() and not each[1:].any() for each in (*buffers.layers, *buffers.scales))


@pytest.mark.parametrize("full", [False, True])
def test_an_idle_decoder_commits_nothing(full: bool) -> None:
    model = tiny_model("gpt2", n_embd=128, n_head=2)
    one = tiny_runner(model, slots=1, max_length=POSITIONS).pages.bytes(POSITIONS)
    runner = tiny_runner(model, slots=8, max_length=POSITIONS, kv_cache_bytes=one * (8 if full else 7))
    assert runner.pages.bytes(1) == (one if full else one // 8)
    runner.warm_up()
    assert resident(runner._buffers) == 0
    runner.repair([0] * 8)
    assert resident(runner._buffers) == 0


@given(
    st.integers(1, 5), st.sampled_from([8, 12, 64, 80, 96, 128, 256]), st.integers(1, 5000), st.sampled_from(TYPES),
    st.data(),
)  # fmt: skip
def test_pages_of_a_slot(heads: int, size: int, max_length: int, dtype: torch.dtype, data: st.DataObject) -> None:
    form = FORM.model_copy(update={"kv_heads": heads, "head_dim": size})
    layout = slot_layout(form, max_length, dtype, CPU)
    pages, tokens = layout.pages, data.draw(st.integers(0, max_length))
    assert layout.capacity >= max_length
    assert (2 * heads * layout.capacity * 4) % PAGE_BYTES == 0 or dtype != torch.int8
    assert (layout.capacity * size * dtype.itemsize) % PAGE_BYTES == 0
    assert pages.bytes(0) == 0
    assert pages.bytes(tokens) >= buffer_bytes(form, 1, tokens, dtype)
    covered = pages.covered(tokens)
    assert tokens <= covered <= layout.capacity
    assert pages.bytes(covered) == pages.bytes(tokens)
    assert covered == layout.capacity or pages.bytes(covered + 1) > pages.bytes(tokens)
    budget = data.draw(st.integers(0, pages.bytes(max_length)))
    fitting = pages.within(budget, max_length)
    assert pages.bytes(fitting) <= budget
    assert fitting == max_length or pages.bytes(fitting + 1) > budget


def test_integers_take_half_the_memory_and_a_scale() -> None:
    large = FORM.model_copy(update={"head_dim": 128})
    one, two, four = (buffer_bytes(large, 8, 1024, dtype) for dtype in (torch.int8, torch.bfloat16, torch.float32))
    assert (one / two, one / four) == (132 / 256, 132 / 512)


@pytest.mark.parametrize("dtype", TYPES)
def test_moves_copy_the_held_tokens_and_allocate_nothing(dtype: torch.dtype) -> None:
    buffers = make(dtype=dtype)
    tensors = [*buffers.layers, *buffers.scales]
    at = [each.data_ptr() for each in tensors]
    for number, each in enumerate(tensors):
        for slot in range(3):
            each[slot] = 10 * slot + number
    # Of keys and values in both layers, and scales of both for each head.
    token = 2 * 2 * (FORM.kv_width * dtype.itemsize + (4 * FORM.kv_heads if dtype == torch.int8 else 0))
    assert buffers.move([SlotMove(2, 0), SlotMove(1, 0, exchange=True)], [0, 4, 3]) == token * (3 + 4 + 3)
    for number, each in enumerate(tensors):
        assert (each[0, :, :4] == 10 + number).all()
        assert (each[1, :, :3] == 20 + number).all()
        assert (each[1, :, 4:] == 10 + number).all()
    assert buffers.copy([SlotCopy(0, 2, 1, 3)]) == 2 * token
    for number, each in enumerate(tensors):
        assert (each[2, :, 1:3] == 10 + number).all()
        assert (each[2, :, 3:] == 20 + number).all()
    assert [each.data_ptr() for each in tensors] == at


def test_integers_whose_scale_is_not_finite_are_cleared() -> None:
    buffers = make(dtype=torch.int8)
    for each in (*buffers.layers, *buffers.scales):
        each.fill_(1)
    buffers.scales[1][2, 0, 4] = torch.nan
    assert (buffers.repair([10] * 3), buffers.repair([10] * 3)) == ((2,), ())
    assert not any(each[2, :, :10].any() for each in (*buffers.layers, *buffers.scales))


def test_slots_with_nan_or_infinity_are_cleared() -> None:
    buffers = make()
    for each in buffers.layers:
        each.fill_(1)
    assert buffers.repair([10] * 3) == ()
    buffers.layers[1][1, 3, 9, 0] = torch.nan
    buffers.layers[0][2, 1, 0, 0] = torch.inf
    assert buffers.repair([10] * 3) == (1, 2)
    assert buffers.repair([10] * 3) == ()
    assert all((each[0] == 1).all() and not each[1:, :, :10].any() for each in buffers.layers)
