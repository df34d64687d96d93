"""A bottleneck adapter of AdapterHub on its base, computed by transformers: the reference for its import.

AdapterHub's own library needs another release of transformers, so its computation is written here from what the library
saves: after a layer, y becomes y + s · up(σ(down(y))), and a head reads the first token's vector or the pooled one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from tidal.pets.terms import FloatArray

_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.nn.functional.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SavedHead:
    """A head as it was saved.

    Attributes:
        layers: Weight and bias (or None) of its linear layers, in their order.
        activation: Activation between the layers.
        pooled: Whether it reads the pooled vector; else it reads the first token's.
    """

    layers: Sequence[tuple[FloatArray, FloatArray | None]]
    activation: str
    pooled: bool


class AdapterModel:
    """An encoder with adapters after its layers and a head.

    Args:
        encoder: Encoder as `AutoModel` loads it; it is changed.
        adapters: `down.weight`, `down.bias`, `up.weight` and `up.bias` as saved, by the path of the layer.
        activation: Activation of the adapters.
        scale: Factor of what the adapters add.
        head: Head of the model.
    """

    def __init__(
        self,
        encoder: Any,
        adapters: Mapping[str, Mapping[str, FloatArray]],
        activation: str,
        scale: float,
        head: SavedHead,
    ) -> None:
        self._encoder, self._head = encoder.eval(), head
        for path, parts in adapters.items():
            encoder.get_submodule(path).register_forward_hook(_behind(parts, _ACTIVATIONS[activation], scale))

    def __call__(self, **inputs: torch.Tensor) -> Any:
        """Compute a batch's `logits` [rows, classes]."""
        found = self._encoder(**inputs)
        values = found.pooler_output if self._head.pooled else found.last_hidden_state[:, 0]
        for number, (weight, bias) in enumerate(self._head.layers):
            if number:
                values = _ACTIVATIONS[self._head.activation](values)
            values = _linear(values, weight, bias)
        return SimpleNamespace(logits=values)


def _behind(parts: Mapping[str, FloatArray], activation: Callable[[torch.Tensor], torch.Tensor], scale: float) -> Any:
    def add(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        inner = activation(_linear(output, parts["down.weight"], parts["down.bias"]))
        return output + scale * _linear(inner, parts["up.weight"], parts["up.bias"])

    return add


def _linear(values: torch.Tensor, weight: FloatArray, bias: FloatArray | None) -> torch.Tensor:
    return torch.nn.functional.linear(
        values, torch.from_numpy(weight), None if bias is None else torch.from_numpy(bias)
    )
