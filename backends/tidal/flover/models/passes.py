"""A whole pass as one call of the library of kernels: nothing of Python runs between its products.

A pass in Python is some hundred calls, and each gives the interpreter away and has to get it back from the threads that
send what the pass before gave.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from typing import cast

import torch

from tidal.flover.memory.buffers import KeyValueBuffers
from tidal.flover.models.form import DecoderForm
from tidal.flover.models.layer import Layer, Turns
from tidal.flover.models.linear import NUMBERS, Linear, NativeLinear
from tidal.flover.models.weights import Affine


class _Kind(IntEnum):
    """As native/api.cpp numbers them."""

    EMBED = 0
    NORM = 1
    LINEAR = 2
    HEAD_NORM = 3
    TURN = 4
    ATTEND = 5
    GATE = 6


class _Operation(ctypes.Structure):
    """As native/api.cpp declares it."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "half", "source", "target", "added", "inputs", "outputs")),
        *((name, ctypes.c_int32) for name in ("heads", "kv_heads", "size", "activation", "centred", "last")),
        ("epsilon", ctypes.c_float),
        ("length", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("weights", "more", "held")),
    )


# What rows are kept in between: where they stand, the same behind attention, what products read, what they give, what
# was attended to, what gates let through, and logits.
_HIDDEN, _ATTENDED, _READ, _MADE, _FOUND, _GATED, _LOGITS = range(7)
_NONE = -1


class NativePass:
    """A decoder's pass, written down once.

    Args:
        form: of the decoder.
        tokens: embeddings.
        positions: embeddings; None: there are none.
        layers: whose products go through the library.
        final_norm: behind them.
        head: gives logits.
        turns: a table of all positions; None: heads are not turned.
        buffers: of keys and values.
        library: of kernels.
    """

    def __init__(
        self,
        form: DecoderForm,
        tokens: torch.Tensor,
        positions: torch.Tensor | None,
        layers: Sequence[Layer],
        final_norm: Affine,
        head: Linear,
        turns: Turns | None,
        buffers: KeyValueBuffers,
        library: ctypes.CDLL,
    ) -> None:
        self._form, self._buffers, self._turns = form, buffers, turns
        self._kept = tokens, positions, layers, final_norm, head  # whose addresses are used
        self._run, self._threads = library.tidal_pass, torch.get_num_threads()
        written = [self._embed(tokens, positions)]
        for number, layer in enumerate(layers):
            written += self._layer(number, layer)
        final = self._norm(final_norm, _HIDDEN)
        final.last = 1  # and what follows it
        self._body = len(written)
        written += [final, self._linear(head, _READ, _LOGITS)]
        self._operations = (_Operation * len(written))(*written)
        made = max(each.outputs for each in written[: self._body])
        self._widths = (form.width, form.width, form.width, made, form.heads * form.head_dim, form.inner)
        self._c_widths = (ctypes.c_int32 * 7)(*self._widths, form.vocabulary)
        self._scratch: tuple[torch.Tensor, ...] = ()

    def __call__(
        self, token_ids: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Make the pass: any rows, of prompts and of texts that go on; those of one slot in ascending order.

        Args:
            token_ids: [rows] int64.
            slots: [rows] int64, that keys and values are written to.
            positions: [rows] int64, of each row in its slot.
            wanted: [wanted] int32, the rows behind which logits are wanted, ascending, perhaps none; None: all.

        Returns:
            Float32 [wanted, vocabulary].
        """
        count = len(token_ids)
        if not self._scratch or len(self._scratch[0]) < count:
            self._scratch = tuple(torch.empty(count, width) for width in self._widths)
        found = torch.empty(count if wanted is None else len(wanted), self._form.vocabulary)
        addresses = [each.data_ptr() for each in (*self._scratch, found)]
        self._run(
            self._threads, len(self._operations) if len(found) else self._body, self._operations, count,
            token_ids.data_ptr(), slots.data_ptr(), positions.data_ptr(),
            (ctypes.c_void_p * 7)(*addresses), self._c_widths,
            None if wanted is None else wanted.data_ptr(), len(found),
        )  # fmt: skip
        return found

    def _embed(self, tokens: torch.Tensor, positions: torch.Tensor | None) -> _Operation:
        return _Operation(
            kind=_Kind.EMBED, half=tokens.dtype == torch.bfloat16, source=_NONE, target=_HIDDEN, added=_NONE,
            outputs=self._form.width, weights=tokens.data_ptr(),
            more=None if positions is None else positions.data_ptr(),
        )  # fmt: skip

    def _layer(self, number: int, layer: Layer) -> list[_Operation]:
        form = self._form
        steps = [self._norm(layer.attention_norm, _HIDDEN), self._linear(layer.qkv, _READ, _MADE)]
        heads = {"heads": form.heads, "kv_heads": form.kv_heads, "size": form.head_dim}
        if layer.head_norm is not None:
            steps.append(
                _Operation(
                    kind=_Kind.HEAD_NORM, source=_MADE, target=_MADE, added=_NONE, epsilon=form.epsilon,
                    weights=layer.head_norm.data_ptr(), **heads,
                )
            )  # fmt: skip
        if self._turns is not None:
            cosines, sines = self._turns
            steps.append(
                _Operation(
                    kind=_Kind.TURN, source=_MADE, target=_MADE, added=_NONE, inputs=cosines.shape[-1],
                    weights=cosines.data_ptr(), more=sines.data_ptr(), **heads,
                )
            )  # fmt: skip
        held = self._buffers.layers[number]
        steps.append(
            _Operation(
                kind=_Kind.ATTEND, half=held.dtype == torch.bfloat16, source=_MADE, target=_FOUND, added=_NONE,
                length=held.shape[2], held=held.data_ptr(), **heads,
            )
        )  # fmt: skip
        steps.append(self._linear(layer.output, _FOUND, _ATTENDED, added=_HIDDEN))
        if layer.feed_norm is not None:
            steps.append(self._norm(layer.feed_norm, _HIDDEN if form.parallel else _ATTENDED))
        steps.append(self._linear(layer.up, _READ, _MADE))
        if form.gated:
            steps.append(
                _Operation(
                    kind=_Kind.GATE, source=_MADE, target=_GATED, added=_NONE, outputs=form.inner,
                    activation=NUMBERS[form.activation],
                )
            )  # fmt: skip
        steps.append(self._linear(layer.down, _GATED if form.gated else _MADE, _HIDDEN, added=_ATTENDED))
        return steps

    def _norm(self, weights: Affine, source: int) -> _Operation:
        return _Operation(
            kind=_Kind.NORM, source=source, target=_READ, added=_NONE, outputs=self._form.width,
            centred=self._form.norm == "layer", epsilon=self._form.epsilon, weights=weights.weight.data_ptr(),
            more=None if weights.bias is None else weights.bias.data_ptr(),
        )  # fmt: skip

    def _linear(self, through: Linear, source: int, target: int, added: int = _NONE) -> _Operation:
        product = cast(NativeLinear, through)
        return _Operation(
            kind=_Kind.LINEAR, half=product.half, source=source, target=target, added=added, inputs=product.inputs,
            outputs=product.outputs, activation=product.activation, weights=product.panels, more=product.bias,
        )  # fmt: skip
