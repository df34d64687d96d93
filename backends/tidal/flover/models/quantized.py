"""Weights of 8 and 4 bits: rounding, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

# Inputs whose rows share a scale in products with int8 weights.
INT8_GROUP = 128
GROUP_SIZES = (32, 64, 128)
_ZERO = 128  # the integer of an int8 weight that is 0


@dataclass(frozen=True, slots=True)
class Quantized:
    """A weight [outputs, inputs] as integers.

    Attributes:
        values: Integers without sign. int8: [outputs, inputs], of which 128 is 0. int4: two inputs in a byte, the first
            in its low half, [outputs, groups * group / 2], padded with 0.
        scales: int8: scale of each output, float32 [outputs]. int4: scale and minimum of each group of inputs, bfloat16
            [outputs, groups, 2]; a weight is integer * scale + minimum.
        inputs: Number of inputs, int64 [1].
    """

    values: torch.Tensor
    scales: torch.Tensor
    inputs: torch.Tensor

    @property
    def bits(self) -> int:
        """Number of bits of a weight."""
        return 8 if self.scales.dim() == 1 else 4

    @property
    def group(self) -> int:
        """Number of inputs that share a scale: of rows, and with 4 bits of weights."""
        return INT8_GROUP if self.bits == 8 else 2 * self.values.shape[1] // self.scales.shape[1]

    def integers(self) -> torch.Tensor:
        """Return one integer per byte, padded to whole groups, uint8 [outputs, groups * group]."""
        if self.bits == 4:
            return torch.stack([self.values & 15, self.values >> 4], -1).flatten(1)
        return functional.pad(self.values, (0, -self.values.shape[1] % self.group))

    def dequantized(self) -> torch.Tensor:
        """Return the weight that the integers stand for, float32 [outputs, inputs]."""
        inputs = int(self.inputs)
        if self.bits == 8:
            return (self.values.float() - _ZERO) * self.scales[:, None]
        grouped = self.integers().float().view(len(self.values), -1, self.group)
        scale, minimum = self.scales.float().unbind(-1)
        return (grouped * scale[..., None] + minimum[..., None]).flatten(1)[:, :inputs]


def joined(weights: Sequence[torch.Tensor | Quantized]) -> torch.Tensor | Quantized:
    """Join weights of equal inputs to one of all their outputs.

    Args:
        weights: Weights [outputs, inputs], at least one; integers stay integers if all have the same form.
    """
    integers = [each for each in weights if isinstance(each, Quantized)]
    forms = {(each.values.shape[1:], each.scales.shape[1:]) for each in integers}
    if len(integers) == len(weights) and len(forms) == 1:
        values, scales = (torch.cat(parts) for parts in zip(*((e.values, e.scales) for e in integers), strict=True))
        return Quantized(values, scales, integers[0].inputs)
    return torch.cat([each.dequantized() if isinstance(each, Quantized) else each for each in weights])


def quantize(weight: torch.Tensor, bits: int, group: int) -> Quantized:
    """Round a weight to integers.

    Args:
        weight: Weight, [outputs, inputs].
        bits: 8, symmetric with one scale for each output; 4, asymmetric with a scale and minimum for each group.
        group: Number of inputs in a group, with 4 bits.
    """
    return _to_int8(weight.float()) if bits == 8 else _to_int4(weight.float(), group)


def _to_int8(weight: torch.Tensor) -> Quantized:
    scales = (weight.abs().amax(1) / 127).clamp_min(1e-30)
    values = (weight / scales[:, None]).round_().add_(_ZERO).to(torch.uint8)
    return Quantized(values, scales, torch.tensor([weight.shape[1]]))


def _to_int4(weight: torch.Tensor, group: int) -> Quantized:
    inputs = weight.shape[1]
    # The last group is padded with its last weight, which changes neither its minimum nor its maximum.
    padded = functional.pad(weight[:, None], (0, -inputs % group), mode="replicate")[:, 0]
    grouped = padded.view(len(weight), -1, group)
    minimum = _rounded(grouped.amin(-1), up=False)
    scale = _rounded(((grouped.amax(-1) - minimum.float()) / 15).clamp_min(1e-30), up=True)
    integers = (grouped - minimum.float()[..., None]).div_(scale.float()[..., None]).round_().clamp_(0, 15)
    values = integers.to(torch.uint8).flatten(1)
    values[:, inputs:] = 0
    packed = values[:, 0::2] | values[:, 1::2] << 4
    return Quantized(packed, torch.stack([scale, minimum], -1).contiguous(), torch.tensor([inputs]))


def _rounded(values: torch.Tensor, *, up: bool) -> torch.Tensor:
    """Round to bfloat16, up or down, so that a group's range contains its weights."""
    nearest = values.to(torch.bfloat16)
    beyond = nearest.float() < values if up else nearest.float() > values
    step = torch.nextafter(nearest, torch.full_like(nearest, torch.inf if up else -torch.inf))
    return torch.where(beyond, step, nearest)
