"""Memory of slots, moves between them, and the removal of NaN."""

from __future__ import annotations

import pytest
import torch

from testing.decoders import tiny_config
from tidal.flover.architectures import form_of
from tidal.flover.memory.buffers import KeyValueBuffers, buffer_bytes
from tidal.flover.memory.slots import SlotCopy, SlotMove

FORM = form_of(tiny_config("llama"))
CPU = torch.device("cpu")


TYPES = (torch.float32, torch.bfloat16, torch.int8)


def make(slots: int = 3, max_length: int = 10, dtype: torch.dtype = torch.bfloat16) -> KeyValueBuffers:
    return KeyValueBuffers(FORM, slots, max_length, dtype, CPU)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_stated_bytes_are_allocated(dtype: torch.dtype) -> None:
    buffers = make(dtype=dtype)
    tensors = [*buffers.layers, *buffers.scales, buffers._scratch, buffers._scale_scratch]
    assert buffers.bytes == buffer_bytes(FORM, 3, 10, dtype) == sum(each.nbytes for each in tensors)
    assert all(each.is_contiguous() for each in tensors)


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
    assert buffers.move([SlotMove(2, 0), SlotMove(1, 0, exchange=True)], [0, 4, 3]) == token * (3 + 2 * 4)
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
    assert (buffers.repair(), buffers.repair()) == ((2,), ())
    assert not any(each[2].any() for each in (*buffers.layers, *buffers.scales))


def test_slots_with_nan_or_infinity_are_cleared() -> None:
    buffers = make()
    for each in buffers.layers:
        each.fill_(1)
    assert buffers.repair() == ()
    buffers.layers[1][1, 3, 9, 0] = torch.nan
    buffers.layers[0][2, 1, 0, 0] = torch.inf
    assert buffers.repair() == (1, 2)
    assert buffers.repair() == ()
    assert all((each[0] == 1).all() and not each[1:].any() for each in buffers.layers)
