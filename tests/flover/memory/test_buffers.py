"""Memory of slots, moves between them, and the removal of NaN."""

from __future__ import annotations

import torch

from testing.decoders import tiny_config
from tidal.flover.architectures import form_of
from tidal.flover.memory.buffers import KeyValueBuffers, buffer_bytes
from tidal.flover.memory.slots import SlotMove

FORM = form_of(tiny_config("llama"))
CPU = torch.device("cpu")


def make(slots: int = 3, max_length: int = 10) -> KeyValueBuffers:
    return KeyValueBuffers(FORM, slots, max_length, torch.bfloat16, CPU)


def test_the_stated_bytes_are_allocated() -> None:
    buffers = make()
    tensors = [*buffers.layers, buffers._scratch]
    assert buffers.bytes == buffer_bytes(FORM, 3, 10, torch.bfloat16) == sum(each.nbytes for each in tensors)
    assert all(each.is_contiguous() for each in tensors)


def test_moves_copy_the_held_tokens_and_allocate_nothing() -> None:
    buffers = make()
    at = [each.data_ptr() for each in buffers.layers]
    for number, each in enumerate(buffers.layers):
        for slot in range(3):
            each[slot] = 10 * slot + number
    token = 2 * 2 * FORM.kv_width * 2  # of keys and values in both layers
    assert buffers.move([SlotMove(2, 0), SlotMove(1, 0, exchange=True)], [0, 4, 3]) == token * (3 + 2 * 4)
    for number, each in enumerate(buffers.layers):
        assert (each[0, :, :4] == 10 + number).all()
        assert (each[1, :, :3] == 20 + number).all()
        assert (each[1, :, 4:] == 10 + number).all()
    assert [each.data_ptr() for each in buffers.layers] == at


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
