"""Operations of a pass of the native library."""

from __future__ import annotations

import ctypes
from enum import IntEnum

import torch

from tidal.flover.form import DecoderForm

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


class Operation(ctypes.Structure):
    """An operation of a pass, as native/operations.hpp declares it."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "half", "source", "target", "added", "turned", "outputs")),
        *((name, ctypes.c_int32) for name in ("heads", "kv_heads", "size", "activation", "centred", "last")),
        *((name, ctypes.c_int32) for name in ("wide", "window")),
        *((name, ctypes.c_float) for name in ("epsilon", "scale", "cap")),
        ("length", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("weights", "more", "held")),
    )


def attend_operation(form: DecoderForm, cache: torch.Tensor, layer: int, source: int, target: int) -> Operation:
    """Return the operation that writes keys and values, and attends.

    Args:
        form: Architecture of the decoder.
        cache: Keys and values of the layer, whose address must stay valid.
        layer: Index of the layer.
        source: Matrix with queries, keys and values.
        target: Matrix for the outputs of all heads.
    """
    return Operation(
        kind=Kind.ATTEND, half=cache.dtype == torch.bfloat16, source=source, target=target, added=NONE,
        heads=form.heads, kv_heads=form.kv_heads, size=form.head_dim, length=cache.shape[2], held=cache.data_ptr(),
        scale=form.attention_scale, cap=form.score_cap or 0, window=form.window(layer) or 0,
    )  # fmt: skip
