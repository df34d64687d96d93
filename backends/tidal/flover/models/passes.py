"""A whole pass as one call of the native library.

In Python a pass is some hundred calls. Each releases the interpreter lock, and then waits for it while other threads
send the tokens of the previous pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import cast

import torch

from tidal.flover.form import DecoderForm, Rotary
from tidal.flover.memory.buffers import KeyValueBuffers
from tidal.flover.models.layer import Layer, RotaryTable
from tidal.flover.models.linear import ACTIVATION_NUMBERS, Linear, NativeLinear
from tidal.flover.models.operations import NONE, Kind, Operation, attend_operation, format_of
from tidal.flover.models.weights import Affine

# Scratch matrices: the residual stream before and after attention, input and output of projections, output of
# attention, of gated activations, and logits.
_HIDDEN, _ATTENDED, _INPUT, _OUTPUT, _ATTENTION, _GATED, _LOGITS = range(7)


class NativePass:
    """The operations of a decoder's pass, prepared once.

    Args:
        form: Architecture of the decoder.
        tokens: Token embeddings, [vocabulary, width].
        positions: Position embeddings, [positions, width]; None: rotary positions.
        layers: Layers, whose linear layers use the native library.
        final_norm: Weights of the norm after the last layer.
        head: Linear layer to logits.
        rotary: Rotary tables of all positions; empty: position embeddings.
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
        rotary: Mapping[Rotary, RotaryTable],
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
        if form.logit_cap is not None:
            operations.append(
                Operation(
                    kind=Kind.CAP, source=_LOGITS, target=_LOGITS, added=NONE, outputs=form.vocabulary,
                    cap=form.logit_cap,
                )
            )  # fmt: skip
        self._operations = (Operation * len(operations))(*operations)
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

    def _embed(self, tokens: torch.Tensor, positions: torch.Tensor | None) -> Operation:
        return Operation(
            kind=Kind.EMBED, format=format_of(tokens), source=NONE, target=_HIDDEN, added=NONE,
            outputs=self._form.width, scale=self._form.embedding_scale, weights=tokens.data_ptr(),
            more=None if positions is None else positions.data_ptr(),
        )  # fmt: skip

    def _layer(self, number: int, layer: Layer) -> list[Operation]:
        form = self._form
        source, operations = _HIDDEN, list[Operation]()
        if layer.attention_norm is not None:
            source = _INPUT
            operations.append(self._norm(layer.attention_norm, _HIDDEN))
        operations.append(self._linear(layer.qkv, source, _OUTPUT))
        heads = {"heads": form.heads, "kv_heads": form.kv_heads, "size": form.head_dim}
        if layer.head_norm is not None:
            operations.append(
                Operation(
                    kind=Kind.HEAD_NORM, source=_OUTPUT, target=_OUTPUT, added=NONE, epsilon=form.epsilon,
                    wide=form.wide_norm, weights=layer.head_norm.data_ptr(), **heads,
                )
            )  # fmt: skip
        if (rotary := form.layer_rotary(number)) is not None:
            cosines, sines = self._rotary[rotary]
            operations.append(
                Operation(
                    kind=Kind.TURN, source=_OUTPUT, target=_OUTPUT, added=NONE, turned=cosines.shape[-1],
                    weights=cosines.data_ptr(), more=sines.data_ptr(), **heads,
                )
            )  # fmt: skip
        operations.append(attend_operation(form, self._buffers, number, _OUTPUT, _ATTENTION))
        operations += self._summed(layer.output, _ATTENTION, _OUTPUT, _ATTENDED, _HIDDEN, layer.attention_after)
        source = _INPUT if form.shared_norm else _HIDDEN if form.parallel else _ATTENDED
        if layer.feed_norm is not None:
            operations.append(self._norm(layer.feed_norm, source))
            source = _INPUT
        if layer.experts is not None:
            operations.append(layer.experts.operation(source, _HIDDEN, _ATTENDED))
            return operations
        operations.append(self._linear(layer.up, source, _OUTPUT))
        operations[-1].joined = int(not form.gated)
        if form.gated:
            operations.append(
                Operation(
                    kind=Kind.GATE, source=_OUTPUT, target=_GATED, added=NONE, outputs=form.inner,
                    activation=ACTIVATION_NUMBERS[form.activation],
                )
            )  # fmt: skip
        source = _GATED if form.gated else _OUTPUT
        operations += self._summed(layer.down, source, _INPUT, _HIDDEN, _ATTENDED, layer.feed_after)
        return operations

    def _summed(
        self, linear: Linear, source: int, between: int, target: int, residual: int, after: Affine | None
    ) -> list[Operation]:
        """A projection, normalised if there is a norm after it, and the residual; `between` holds its output."""
        if after is None:
            return [self._linear(linear, source, target, added=residual)]
        return [self._linear(linear, source, between), self._norm(after, between, target, residual)]

    def _norm(self, weights: Affine, source: int, target: int = _INPUT, added: int = NONE) -> Operation:
        return Operation(
            kind=Kind.NORM, source=source, target=target, added=added, outputs=self._form.width,
            centred=self._form.norm == "layer", epsilon=self._form.epsilon, weights=weights.weight.data_ptr(),
            more=None if weights.bias is None else weights.bias.data_ptr(),
        )  # fmt: skip

    def _linear(self, linear: Linear, source: int, target: int, added: int = NONE) -> Operation:
        native = cast(NativeLinear, linear)
        return Operation(
            kind=Kind.LINEAR, source=source, target=target, added=added, outputs=native.matrix.outputs,
            activation=native.activation, weights=native.matrix.address,
        )  # fmt: skip
