"""Linear layers for few rows, as in a decode step, whose duration is that of reading the weights."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional

from tidal.flover.form import Activation
from tidal.flover.models.quantized import Quantized
from tidal.flover.models.weights import Affine, Dense
from tidal.flover.native.library import usable
from tidal.flover.native.matrix import Format, PackedMatrix
from tidal.flover.native.tiling import DEFAULT_TILING, Tiling

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


def working_type(weights: torch.Tensor) -> torch.dtype:
    """Return the type of rows between linear layers: float32 with the native library, else that of the weights."""
    return weights.dtype if usable(weights.device) is None else torch.float32


class Linear(Protocol):
    """A linear layer with its activation."""

    def __call__(self, rows: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Map [rows, inputs] to [rows, outputs]; with `added` of that shape, add it and skip the activation."""


def linear(dense: Dense, activation: Activation | None = None, tiling: Tiling = DEFAULT_TILING) -> Linear:
    """Create a linear layer with its activation; the weight is copied, and may be released.

    On a CPU it uses the native library, with rows in float32 whatever the weight's type; elsewhere rows have the
    weight's type. Without the library the weight is packed in oneDNN's layout, which makes steps of 1 to 32 rows 1.2 to
    3 times as fast as `torch.nn.functional.linear`. torch offers this only as operators of its own compiler. Integers
    are then stored as bfloat16.

    Args:
        dense: Weight and bias.
        activation: Activation that follows; None: none.
        tiling: Choices of the native library's kernels.
    """
    if (library := usable(dense.device)) is not None:
        return NativeLinear(dense, activation, library, tiling)
    weight = dense.weight.dequantized().to(torch.bfloat16) if isinstance(dense.weight, Quantized) else dense.weight
    affine = Affine(weight, dense.bias)
    if affine.weight.device.type == "cpu" and _packs(affine.weight.dtype):
        return _Packed(affine, activation)
    return _Plain(affine, activation)


def _packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights of this type: bfloat16 only on processors with AVX-512 or its successors."""
    return bool(torch._C._has_mkldnn and (dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()))


class NativeLinear:
    """Linear layer of the native library, which reads the weight once for up to some hundred rows.

    It uses as many threads as torch has on construction.

    Attributes:
        matrix: The packed weight with the bias.
        activation: Number of the activation in the native library.

    Args:
        dense: Weight and bias.
        activation: Activation that follows; None: none.
        library: The native library.
        tiling: Choices of its kernels.
    """

    def __init__(self, dense: Dense, activation: Activation | None, library: ctypes.CDLL, tiling: Tiling) -> None:
        self.matrix = _packed(dense, library, tiling)
        self.activation = ACTIVATION_NUMBERS[activation]
        self._run = library.tidal_linear
        self._threads = torch.get_num_threads()

    def __call__(self, rows: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """See `Linear`."""
        rows, count = rows.contiguous(), len(rows)
        result = torch.empty(count, self.matrix.outputs)
        self._run(
            *(self.matrix.address, self._threads, count, rows.data_ptr()),
            *((None, self.activation) if added is None else (added.data_ptr(), 0)),
            result.data_ptr(),
        )
        return result


def _packed(dense: Dense, library: ctypes.CDLL, tiling: Tiling) -> PackedMatrix:
    weight = dense.weight
    if isinstance(weight, Quantized):
        format = Format.INT8 if weight.bits == 8 else Format.INT4
        return PackedMatrix(
            library, format, weight.integers(), int(weight.inputs), dense.bias, tiling,
            scales=weight.scales, group=weight.group,
        )  # fmt: skip
    format = Format.HALF if weight.dtype == torch.bfloat16 else Format.FULL
    return PackedMatrix(library, format, weight, weight.shape[1], dense.bias, tiling)


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
