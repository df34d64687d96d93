"""Linear layers for few rows, as in a decode step, whose duration is that of reading the weights."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional

from tidal.flover.form import Activation
from tidal.flover.models.weights import Affine
from tidal.flover.native.library import large_pages, usable

_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda rows: functional.gelu(rows, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}
# oneDNN's names of the same, with the algorithm if there are several.
_FUSED: dict[Activation | None, tuple[str, str]] = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
}
# Numbers of the same in the native library, see native/kernels.hpp.
ACTIVATION_NUMBERS: dict[Activation | None, int] = {None: 0, "relu": 1, "gelu": 2, "gelu_new": 3, "silu": 4}
_PANEL = 48  # the native library pads outputs to a multiple of this


def working_type(weights: torch.Tensor) -> torch.dtype:
    """Return the type of rows between linear layers: float32 with the native library, else that of the weights."""
    return weights.dtype if usable(weights.device) is None else torch.float32


class Linear(Protocol):
    """A linear layer with its activation."""

    def __call__(self, rows: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Map [rows, inputs] to [rows, outputs]; with `added` of that shape, add it and skip the activation."""


def linear(affine: Affine, activation: Activation | None = None) -> Linear:
    """Create a linear layer with its activation; the weight is copied, and may be released.

    On a CPU it uses the native library, with rows in float32 whatever the weight's type; elsewhere rows have the
    weight's type. Without the library the weight is packed in oneDNN's layout, which makes steps of 1 to 32 rows 1.2 to
    3 times as fast as `torch.nn.functional.linear`. torch offers this only as operators of its own compiler.
    """
    if (library := usable(affine.weight.device)) is not None:
        return NativeLinear(affine, activation, library)
    if affine.weight.device.type == "cpu" and torch._C._has_mkldnn:
        return _Packed(affine, activation)
    return _Plain(affine, activation)


class NativeLinear:
    """Linear layer of the native library, which reads the weight once for up to some hundred rows.

    It uses as many threads as torch has on construction.

    Attributes:
        half: Whether the weight is bfloat16.
        inputs: Number of inputs.
        outputs: Number of outputs.
        panels: Address of the packed weight.
        bias: Address of the bias; None: no bias.
        activation: Number of the activation in the native library.

    Args:
        affine: Weight and bias.
        activation: Activation that follows; None: none.
        library: The native library.
    """

    def __init__(self, affine: Affine, activation: Activation | None, library: ctypes.CDLL) -> None:
        weight = affine.weight.contiguous()
        self.outputs, self.inputs = weight.shape
        self.half = weight.dtype == torch.bfloat16
        size = library.tidal_packed_size(self.half, self.inputs, self.outputs)
        self._panels = large_pages(torch.empty(size, dtype=weight.dtype))
        library.tidal_pack(self.half, self.inputs, self.outputs, weight.data_ptr(), self._panels.data_ptr())
        self._bias = None
        if affine.bias is not None:
            self._bias = torch.zeros(-(-self.outputs // _PANEL) * _PANEL)
            self._bias[: self.outputs] = affine.bias
        self.panels, self.bias = self._panels.data_ptr(), None if self._bias is None else self._bias.data_ptr()
        self.activation = ACTIVATION_NUMBERS[activation]
        self._run = library.tidal_linear
        self._threads = torch.get_num_threads()

    def __call__(self, rows: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """See `Linear`."""
        rows, count = rows.contiguous(), len(rows)
        result = torch.empty(count, self.outputs)
        self._run(
            *(self.half, self._threads, count, self.inputs, self.outputs, rows.data_ptr(), self.panels, self.bias),
            *((None, self.activation) if added is None else (added.data_ptr(), 0)),
            result.data_ptr(),
        )
        return result


class _Packed:
    def __init__(self, affine: Affine, activation: Activation | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(affine.weight.contiguous(), None)
        self._bias = affine.bias
        self._name, self._algorithm = _FUSED[activation]
        self._run = torch.ops.mkldnn._linear_pointwise.default
        self._run_adding = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, rows: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        if added is None:
            result: torch.Tensor = self._run(rows, self._weight, self._bias, self._name, [], self._algorithm)
        else:
            result = self._run_adding(rows, added, self._weight, self._bias, "add")
        return result


class _Plain:
    def __init__(self, affine: Affine, activation: Activation | None) -> None:
        self._weight, self._bias = affine.weight.contiguous(), affine.bias
        self._activate = None if activation is None else _ACTIVATIONS[activation]

    def __call__(self, rows: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        result = functional.linear(rows, self._weight, self._bias)
        if added is not None:
            return result.add_(added)
        return result if self._activate is None else self._activate(result)


def activate(activation: Activation, rows: torch.Tensor) -> torch.Tensor:
    """Apply an activation that is not fused with a linear layer."""
    return _ACTIVATIONS[activation](rows)
