"""A whole pass as one call of the native library.

In Python a pass is some hundred calls. Each releases the interpreter lock, and then waits for it while other threads
send the tokens of the previous pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from typing import cast

import torch

from tidal.flover.form import DecoderForm
from tidal.flover.memory.buffers import KeyValueBuffers
from tidal.flover.models.layer import Layer, RotaryTable
from tidal.flover.models.linear import ACTIVATION_NUMBERS, Linear, NativeLinear
from tidal.flover.models.weights import Affine


class _Kind(IntEnum):
    """Kinds of operations, numbered as in native/api.cpp."""

    EMBED = 0
    NORM = 1
    LINEAR = 2
    HEAD_NORM = 3
    TURN = 4
    ATTEND = 5
    GATE = 6


class _Operation(ctypes.Structure):
    """An operation of a pass, as native/api.cpp declares it."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "half", "source", "target", "added", "turned", "outputs")),
        *((name, ctypes.c_int32) for name in ("heads", "kv_heads", "size", "activation", "centred", "last")),
        ("epsilon", ctypes.c_float),
        ("length", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("weights", "more", "held")),
    )


# Scratch matrices: the residual stream before and behind attention, input and output of projections, output of
# attention, of gated activations, and logits.
_HIDDEN, _ATTENDED, _INPUT, _OUTPUT, _ATTENTION, _GATED, _LOGITS = range(7)
_NONE = -1


class NativePass:
    """The operations of a decoder's pass, prepared once.

    Args:
        form: Architecture of the decoder.
        tokens: Token embeddings, [vocabulary, width].
        positions: Position embeddings, [positions, width]; None: rotary positions.
        layers: Layers, whose linear layers use the native library.
        final_norm: Weights of the norm behind the last layer.
        head: Linear layer to logits.
        rotary: Rotary table of all positions; None: position embeddings.
        buffers: Keys and values of all slots.
        library: The native library.
    """

    def __init__(
        self,
        form: DecoderForm,
        tokens: torch.Tensor,
        positions: torch.Tensor | None,
        layers: Sequence[Layer],
        final_norm: Affine,
        head: Linear,
        rotary: RotaryTable | None,
        buffers: KeyValueBuffers,
        library: ctypes.CDLL,
    ) -> None:
        self._form, self._buffers, self._rotary = form, buffers, rotary
        self._referenced = tokens, positions, layers, final_norm, head  # keeps their addresses valid
        self._run, self._threads = library.tidal_pass, torch.get_num_threads()
        operations = [self._embed(tokens, positions)]
        for number, layer in enumerate(layers):
            operations += self._layer(number, layer)
        final = self._norm(final_norm, _HIDDEN)
        final.last = 1  # only rows with logits from here on
        self._body = len(operations)
        operations += [final, self._linear(head, _INPUT, _LOGITS)]
        self._operations = (_Operation * len(operations))(*operations)
        widest = max(operation.outputs for operation in operations[: self._body])
        self._widths = (form.width, form.width, form.width, widest, form.heads * form.head_dim, form.inner)
        self._c_widths = (ctypes.c_int32 * 7)(*self._widths, form.vocabulary)
        self._scratch: tuple[torch.Tensor, ...] = ()

    def __call__(
        self,
        token_ids: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        logit_rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run a pass of any rows to prefill and decode; rows of one slot are in ascending order.

        Args:
            token_ids: Input token of each row, [rows] int64.
            slots: Slot of each row, [rows] int64.
            positions: Position of each row in its slot, [rows] int64.
            logit_rows: Ascending rows whose logits are returned, [returned] int32, perhaps none; None: all.

        Returns:
            Logits, float32 [returned, vocabulary].
        """
        count = len(token_ids)
        if not self._scratch or len(self._scratch[0]) < count:
            self._scratch = tuple(torch.empty(count, width) for width in self._widths)
        logits = torch.empty(count if logit_rows is None else len(logit_rows), self._form.vocabulary)
        addresses = [each.data_ptr() for each in (*self._scratch, logits)]
        self._run(
            self._threads, len(self._operations) if len(logits) else self._body, self._operations, count,
            token_ids.data_ptr(), slots.data_ptr(), positions.data_ptr(),
            (ctypes.c_void_p * 7)(*addresses), self._c_widths,
            None if logit_rows is None else logit_rows.data_ptr(), len(logits),
        )  # fmt: skip
        return logits

    def _embed(self, tokens: torch.Tensor, positions: torch.Tensor | None) -> _Operation:
        return _Operation(
            kind=_Kind.EMBED, half=tokens.dtype == torch.bfloat16, source=_NONE, target=_HIDDEN, added=_NONE,
            outputs=self._form.width, weights=tokens.data_ptr(),
            more=None if positions is None else positions.data_ptr(),
        )  # fmt: skip

    def _layer(self, number: int, layer: Layer) -> list[_Operation]:
        form = self._form
        operations = [self._norm(layer.attention_norm, _HIDDEN), self._linear(layer.qkv, _INPUT, _OUTPUT)]
        heads = {"heads": form.heads, "kv_heads": form.kv_heads, "size": form.head_dim}
        if layer.head_norm is not None:
            operations.append(
                _Operation(
                    kind=_Kind.HEAD_NORM, source=_OUTPUT, target=_OUTPUT, added=_NONE, epsilon=form.epsilon,
                    weights=layer.head_norm.data_ptr(), **heads,
                )
            )  # fmt: skip
        if self._rotary is not None:
            cosines, sines = self._rotary
            operations.append(
                _Operation(
                    kind=_Kind.TURN, source=_OUTPUT, target=_OUTPUT, added=_NONE, turned=cosines.shape[-1],
                    weights=cosines.data_ptr(), more=sines.data_ptr(), **heads,
                )
            )  # fmt: skip
        cache = self._buffers.layers[number]
        operations.append(
            _Operation(
                kind=_Kind.ATTEND, half=cache.dtype == torch.bfloat16, source=_OUTPUT, target=_ATTENTION, added=_NONE,
                length=cache.shape[2], held=cache.data_ptr(), **heads,
            )
        )  # fmt: skip
        operations.append(self._linear(layer.output, _ATTENTION, _ATTENDED, added=_HIDDEN))
        if layer.feed_norm is not None:
            operations.append(self._norm(layer.feed_norm, _HIDDEN if form.parallel else _ATTENDED))
        operations.append(self._linear(layer.up, _INPUT, _OUTPUT))
        if form.gated:
            operations.append(
                _Operation(
                    kind=_Kind.GATE, source=_OUTPUT, target=_GATED, added=_NONE, outputs=form.inner,
                    activation=ACTIVATION_NUMBERS[form.activation],
                )
            )  # fmt: skip
        operations.append(self._linear(layer.down, _GATED if form.gated else _OUTPUT, _HIDDEN, added=_ATTENDED))
        return operations

    def _norm(self, weights: Affine, source: int) -> _Operation:
        return _Operation(
            kind=_Kind.NORM, source=source, target=_INPUT, added=_NONE, outputs=self._form.width,
            centred=self._form.norm == "layer", epsilon=self._form.epsilon, weights=weights.weight.data_ptr(),
            more=None if weights.bias is None else weights.bias.data_ptr(),
        )  # fmt: skip

    def _linear(self, linear: Linear, source: int, target: int, added: int = _NONE) -> _Operation:
        native = cast(NativeLinear, linear)
        return _Operation(
            kind=_Kind.LINEAR, source=source, target=target, added=added, outputs=native.matrix.outputs,
            activation=native.activation, weights=native.matrix.address,
        )  # fmt: skip
