"""A bottleneck adapter of AdapterHub on its base, computed by transformers: the reference for its import.

AdapterHub's own library needs another release of transformers, so its computation is written here from what the library
saves: after a layer, y becomes y + s · up(σ(down(z))), where z is y (Houlsby), or the normalised sum of y and the
residual (Pfeiffer), and a head reads the pooled vector, the first token's, or those of all tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch

from tidal.pets.terms import Activation, FloatArray
from tidal_builders.pets.training.merged import norm_after

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
        reads: Input: the pooled vector, the first token's vector, or those of all tokens.
    """

    layers: Sequence[tuple[FloatArray, FloatArray | None]]
    activation: str
    reads: Literal["pooled", "first", "tokens"]


@dataclass(frozen=True, slots=True)
class AdapterForm:
    """How the adapters of a folder are computed.

    Attributes:
        activation: Activation between both products.
        scale: Factor of what they add.
        after_norm: Whether they read the normalised sum of a layer's output and the residual (Pfeiffer).
    """

    activation: Activation
    scale: float
    after_norm: bool


class AdapterModel:
    """An encoder with adapters after its layers and a head.

    Args:
        encoder: Encoder as `AutoModel` loads it; it is changed.
        adapters: `down.weight`, `down.bias`, `up.weight` and `up.bias` as saved, by the path of the layer.
        form: Form of the adapters.
        head: Head of the model, or None.
    """

    def __init__(
        self,
        encoder: Any,
        adapters: Mapping[str, Mapping[str, FloatArray]],
        form: AdapterForm,
        head: SavedHead | None,
    ) -> None:
        self._encoder, self._head = encoder.eval(), head
        for path, parts in adapters.items():
            if form.after_norm:
                norm = encoder.get_submodule(norm_after(path))
                norm.register_forward_pre_hook(_before(norm, _added(parts, form)))
            else:
                encoder.get_submodule(path).register_forward_hook(_behind(_added(parts, form)))

    def __call__(self, **inputs: torch.Tensor) -> Any:
        """Compute a batch's `logits`, [rows, outputs] or [rows, tokens, outputs], or its hidden states."""
        found = self._encoder(**inputs)
        if self._head is None:
            return found
        values = found.pooler_output if self._head.reads == "pooled" else found.last_hidden_state
        if self._head.reads == "first":
            values = values[:, 0]
        for number, (weight, bias) in enumerate(self._head.layers):
            if number:
                values = _ACTIVATIONS[self._head.activation](values)
            values = _linear(values, weight, bias)
        return SimpleNamespace(logits=values)


def _added(parts: Mapping[str, FloatArray], form: AdapterForm) -> Callable[[torch.Tensor], torch.Tensor]:
    """What an adapter adds, as a function of what it reads."""

    def added(source: torch.Tensor) -> torch.Tensor:
        inner = _ACTIVATIONS[form.activation](_linear(source, parts["down.weight"], parts["down.bias"]))
        return form.scale * _linear(inner, parts["up.weight"], parts["up.bias"])

    return added


def _behind(added: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return lambda _module, _inputs, output: output + added(output)


def _before(norm: Any, added: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    # `forward`, because a call would run this hook again.
    return lambda _module, inputs: (inputs[0] + added(norm.forward(inputs[0])),)


def _linear(values: torch.Tensor, weight: FloatArray, bias: FloatArray | None) -> torch.Tensor:
    return torch.nn.functional.linear(
        values, torch.from_numpy(weight), None if bias is None else torch.from_numpy(bias)
    )
