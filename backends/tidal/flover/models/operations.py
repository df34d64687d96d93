"""Operations of a pass of the native library."""

from __future__ import annotations

import ctypes
from enum import IntEnum

import torch

from tidal.flover.form import DecoderForm
from tidal.flover.memory.buffers import KeyValueBuffers
from tidal.flover.native.matrix import Format

NONE = -1


class Kind(IntEnum):
    """Kinds of operations, numbered as in native/operations.hpp."""

    EMBED = 0
    NORM = 1
    LINEAR = 2
    HEAD_NORM = 3
    TURN = 4
    ATTEND = 5
    GATE = 6
    CAP = 7
    EXPERTS = 8


class Operation(ctypes.Structure):
    """An operation of a pass, as native/operations.hpp declares it."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "format", "source", "target", "added", "turned", "outputs")),
        *((name, ctypes.c_int32) for name in ("heads", "kv_heads", "size", "activation", "centred", "last")),
        *((name, ctypes.c_int32) for name in ("wide", "window", "joined")),
        *((name, ctypes.c_float) for name in ("epsilon", "scale", "cap")),
        ("length", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("weights", "more", "held", "scales")),
    )


# Formats of embeddings, and of keys and values.
_FORMATS = {torch.float32: Format.FULL, torch.bfloat16: Format.HALF, torch.int8: Format.INT8}


def format_of(tensor: torch.Tensor) -> Format:
    """Format of a tensor's numbers."""
    return _FORMATS[tensor.dtype]


def attend_operation(form: DecoderForm, buffers: KeyValueBuffers, layer: int, source: int, target: int) -> Operation:
    """Return the operation that writes keys and values, and attends.

    Args:
        form: Architecture of the decoder.
        buffers: Keys and values of all slots, which must stay in memory.
        layer: Index of the layer.
        source: Matrix with queries, keys and values.
        target: Matrix for the outputs of all heads.
    """
    cache, scales = buffers.layers[layer], buffers.scales
    return Operation(
        kind=Kind.ATTEND, format=format_of(cache), source=source, target=target, added=NONE,
        heads=form.heads, kv_heads=form.kv_heads, size=form.head_dim, length=cache.shape[2], held=cache.data_ptr(),
        scales=scales[layer].data_ptr() if scales else None,
        scale=form.attention_scale, cap=form.score_cap or 0, window=form.window(layer) or 0,
    )  # fmt: skip
