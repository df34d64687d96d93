"""Reads linear layers that a checkpoint stores as integers: GPTQ, AWQ and compressed-tensors.

In all three a weight is (integer - zero) * scale, with a scale and a zero for each output and group of inputs; they
differ in how integers are packed into words of 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from tidal.errors import InvalidArgument
from tidal.flover.models.quantized import GROUP_SIZES, Quantized

_METHODS = ("gptq", "awq", "compressed-tensors")
_BITS = (4, 8)
# Outputs that AWQ packs into a word, from its lowest bits on.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# The tensor of a layer that the others belong to, and those others, by how the layer is stored.
_PACKED = {"gptq": "qweight", "awq": "qweight", "pack-quantized": "weight_packed", "int-quantized": "weight"}
Form = Literal["gptq", "awq", "pack-quantized", "int-quantized"]


@dataclass(frozen=True, slots=True)
class QuantizationScheme:
    """How a checkpoint stores its linear layers.

    Attributes:
        form: Layout of the integers.
        bits: Number of bits of an integer.
        group: Number of inputs that share a scale; None: all inputs of an output.
        zero_offset: Number that is added to stored zeros.
    """

    form: Form
    bits: int
    group: int | None
    zero_offset: int = 0

    @property
    def packed(self) -> str:
        """Last part of the name of a layer's integers."""
        return _PACKED[self.form]


@dataclass(frozen=True, slots=True)
class IntegerWeight:
    """The weight of a linear layer as a checkpoint stores it: (integers - zeros) * scales.

    Attributes:
        integers: Integers without sign, uint8 [outputs, inputs].
        scales: Scale of each group, float32 [outputs, groups].
        zeros: Zero of each group, float32 [outputs, groups].
        groups: Group of each input, int64 [inputs].
        bits: Number of bits of an integer.
    """

    integers: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    groups: torch.Tensor
    bits: int

    def dequantized(self) -> torch.Tensor:
        """Return the weight, float32 [outputs, inputs]."""
        return (self.integers.float() - self.zeros[:, self.groups]) * self.scales[:, self.groups]

    def quantized(self) -> Quantized | None:
        """Return the same integers in the published layout; None if it has no such groups or zeros.

        Scales and minima of 4 bits are rounded to bfloat16, by at most 0.4 %.
        """
        outputs, inputs = self.integers.shape
        count, size = self.scales.shape[1], torch.tensor([inputs])
        if self.bits == 8:
            symmetric = count == 1 and bool((self.zeros == 128).all())
            return Quantized(self.integers, self.scales[:, 0].contiguous(), size) if symmetric else None
        group = -(-inputs // count)
        if group not in GROUP_SIZES or not torch.equal(self.groups, torch.arange(inputs) // group):
            return None
        padded = torch.zeros(outputs, count * group, dtype=torch.uint8)
        padded[:, :inputs] = self.integers
        pairs = torch.stack([self.scales, -self.zeros * self.scales], -1).to(torch.bfloat16)
        return Quantized(padded[:, 0::2] | padded[:, 1::2] << 4, pairs.contiguous(), size)


def scheme_of(config: Mapping[str, Any] | None) -> QuantizationScheme | None:
    """Return how a checkpoint stores its linear layers; None: as floating-point numbers.

    Args:
        config: `quantization_config` of the model's config.json, if it has one.

    Raises:
        InvalidArgument: The method or one of its settings is not supported; names it and what is accepted.
    """
    if not config:
        return None
    method = config.get("quant_method")
    if method not in _METHODS:
        raise _refused("quant_method", method, ", ".join(_METHODS))
    if method == "compressed-tensors":
        return _compressed(config)
    bits = config.get("bits", 4)
    if method == "awq":
        if (version := str(config.get("version", "gemm")).lower()) != "gemm":
            raise _refused("version", version, "gemm")
        if bits != 4:
            raise _refused("bits", bits, "4")
        return QuantizationScheme("awq", 4, _group(config))
    if bits not in _BITS:
        raise _refused("bits", bits, "4, 8")
    layout = config.get("checkpoint_format", "gptq")
    if layout not in ("gptq", "gptq_v2"):
        raise _refused("checkpoint_format", layout, "gptq, gptq_v2")
    # The first version of the format stores zeros less 1.
    return QuantizationScheme("gptq", bits, _group(config), zero_offset=1 if layout == "gptq" else 0)


@dataclass(frozen=True, slots=True)
class _Layer:
    """The tensors of a linear layer: its name, and a function that returns a tensor of the checkpoint, or None."""

    name: str
    get: Callable[[str], torch.Tensor | None]

    def optional(self, part: str) -> torch.Tensor | None:
        return self.get(f"{self.name}.{part}")

    def __getitem__(self, part: str) -> torch.Tensor:
        found = self.optional(part)
        if found is None:
            raise InvalidArgument(
                f"the model has no tensor '{self.name}.{part}', which its quantization_config requires"
            )
        return found


def read_layer(
    scheme: QuantizationScheme, name: str, get: Callable[[str], torch.Tensor | None]
) -> IntegerWeight | None:
    """Read the weight of a linear layer; None if it is not stored as integers.

    Args:
        scheme: Storage of the checkpoint's layers.
        name: Name of the layer.
        get: Returns a tensor of the checkpoint by name as it is stored; None if there is none.

    Raises:
        InvalidArgument: Tensors of the layer are missing, or their shapes do not belong together.
    """
    layer = _Layer(name, get)
    packed = layer.optional(scheme.packed)
    if packed is None or packed.is_floating_point():
        return None
    found = _READERS[scheme.form](scheme, packed, layer)
    outputs, count = found.scales.shape
    sound = found.zeros.shape == found.scales.shape and len(found.groups) == found.integers.shape[1]
    if not sound or outputs != len(found.integers) or int(found.groups.max()) >= count:
        raise InvalidArgument(
            f"the tensors of {name} do not belong together: integers of shape {list(found.integers.shape)}, scales of "
            f"shape {list(found.scales.shape)}, zeros of shape {list(found.zeros.shape)}"
        )
    return found


def _compressed(config: Mapping[str, Any]) -> QuantizationScheme:
    layout = config.get("format")
    if layout not in ("pack-quantized", "int-quantized", "naive-quantized"):
        raise _refused("format", layout, "pack-quantized, int-quantized, naive-quantized")
    groups = list((config.get("config_groups") or {}).values())
    weights = [group.get("weights") or {} for group in groups]
    if len({each.get("num_bits") for each in weights}) != 1:
        raise _refused("config_groups", f"{len(groups)} groups", "groups of one number of bits")
    bits, kind = weights[0].get("num_bits"), weights[0].get("type", "int")
    if kind != "int" or bits not in _BITS:
        raise _refused("config_groups", f"type {kind} of {bits} bits", "type int of 4 or 8 bits")
    if layout != "pack-quantized" and bits != 8:
        raise _refused("format", f"{layout} of {bits} bits", "pack-quantized, or 8 bits")
    form: Form = "pack-quantized" if layout == "pack-quantized" else "int-quantized"
    return QuantizationScheme(form, bits, _group(weights[0]))


def _group(settings: Mapping[str, Any]) -> int | None:
    size = settings.get("group_size")
    return size if isinstance(size, int) and size > 0 else None


def _gptq(scheme: QuantizationScheme, packed: torch.Tensor, layer: _Layer) -> IntegerWeight:
    """Words along inputs, [inputs / words, outputs]; zeros along outputs, [groups, outputs / words]."""
    integers = _unpacked(packed.T, scheme.bits)
    scales = layer["scales"].float().T
    zeros = _unpacked(layer["qzeros"], scheme.bits).T.float() + scheme.zero_offset
    groups = layer.optional("g_idx")
    if groups is None:
        groups = torch.arange(integers.shape[1]) // (integers.shape[1] // scales.shape[1])
    return IntegerWeight(integers, scales, zeros, groups.long(), scheme.bits)


def _awq(scheme: QuantizationScheme, packed: torch.Tensor, layer: _Layer) -> IntegerWeight:
    """Words along outputs in an order of their own, [inputs, outputs / 8]; zeros alike, [groups, outputs / 8]."""
    place = torch.tensor(_AWQ_ORDER).argsort()

    def ordered(words: torch.Tensor) -> torch.Tensor:
        return _unpacked(words, 4).view(len(words), -1, len(place))[..., place].flatten(1).T

    integers, scales = ordered(packed), layer["scales"].float().T
    groups = torch.arange(integers.shape[1]) // (integers.shape[1] // scales.shape[1])
    return IntegerWeight(integers.contiguous(), scales, ordered(layer["qzeros"]).float(), groups, scheme.bits)


def _pack_quantized(scheme: QuantizationScheme, packed: torch.Tensor, layer: _Layer) -> IntegerWeight:
    """Words along inputs, [outputs, inputs / words], of integers with sign plus half of their range."""
    half = 1 << (scheme.bits - 1)
    outputs, inputs = layer["weight_shape"].tolist()
    integers, scales = _unpacked(packed, scheme.bits)[:outputs, :inputs], layer["weight_scale"].float()
    zeros, stored = torch.full_like(scales, half), layer.optional("weight_zero_point")
    if stored is not None:
        # Packed along outputs; releases before 0.10 stored them as bytes.
        unsigned = (
            _unpacked(stored.T, scheme.bits).T[:outputs] if stored.dtype == torch.int32 else stored.float() + half
        )
        zeros = unsigned.float()
    return IntegerWeight(integers, scales, zeros, _groups(layer.optional("weight_g_idx"), inputs, scales), scheme.bits)


def _int_quantized(scheme: QuantizationScheme, packed: torch.Tensor, layer: _Layer) -> IntegerWeight:
    """Bytes with sign, [outputs, inputs]; scales of each output, or one of all."""
    half, scales = 1 << (scheme.bits - 1), layer["weight_scale"].float()
    scales = scales.reshape(-1, 1).expand(len(packed), 1) if scales.numel() in (1, len(packed)) else scales
    zeros, stored = torch.full_like(scales, half), layer.optional("weight_zero_point")
    if stored is not None:
        zeros = zeros + stored.float().reshape(-1, scales.shape[1])
    integers = (packed.to(torch.int16) + half).to(torch.uint8)
    return IntegerWeight(integers, scales, zeros, _groups(None, packed.shape[1], scales), scheme.bits)


_READERS: Mapping[Form, Callable[[QuantizationScheme, torch.Tensor, _Layer], IntegerWeight]] = {
    "gptq": _gptq,
    "awq": _awq,
    "pack-quantized": _pack_quantized,
    "int-quantized": _int_quantized,
}


def _groups(stored: torch.Tensor | None, inputs: int, scales: torch.Tensor) -> torch.Tensor:
    if stored is not None and bool((stored >= 0).all()):
        return stored.long()
    return torch.arange(inputs) // -(-inputs // scales.shape[1])


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Integers of words from their lowest bits on, int32 [rows, words] to uint8 [rows, words * 32 / bits]."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((words[..., None] >> shifts) & ((1 << bits) - 1)).to(torch.uint8).flatten(1)


def _refused(field: str, value: object, accepted: str) -> InvalidArgument:
    return InvalidArgument(f"the model's quantization_config has {field}: {value}; accepted: {accepted}")
