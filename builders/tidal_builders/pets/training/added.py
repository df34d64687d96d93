"""Kinds that add to a frozen encoder: adapters after its layers, and low-rank differences parallel to them."""

from __future__ import annotations

import math

import torch
from torch.nn import Linear, Module, Parameter, ReLU, Sequential

from tidal.pets.kinds.adapter import accepts_adapter
from tidal.pets.terms import BaseLayers, Bottleneck, LinearTerms, LowRankDelta
from tidal_builders.pets.training.changed import Norms, Terms, array_of
from tidal_builders.pets.training.settings import TrainingSettings

# Low-rank differences of the attention's query and value (Hu et al.): in BERT and RoBERTa, in DistilBERT.
_LOW_RANK = (".self.query", ".self.value", "attention.q_lin", "attention.v_lin")
_SCALE = 2.0
# Adapters are near the identity initially.
_SPREAD = 1e-2


class Adapters:
    """Bottlenecks on the outputs of attention and feed-forward part, and the normalisations (Houlsby et al.)."""

    def __init__(self, encoder: Module, base: BaseLayers, settings: TrainingSettings) -> None:
        self._norms = Norms(encoder, base)
        self._adapters: dict[str, tuple[Linear, Linear]] = {}
        for path, layer in base.linear.items():
            if accepts_adapter(path):
                outputs = layer.shape[0]
                down, up = Linear(outputs, settings.bottleneck), Linear(settings.bottleneck, outputs)
                torch.nn.init.normal_(down.weight, std=_SPREAD)
                for start in (down.bias, up.weight, up.bias):
                    torch.nn.init.zeros_(start)
                self._adapters[path] = down, up
                _add(encoder.get_submodule(path), Sequential(down, ReLU(), up), of_output=True)

    @property
    def parameters(self) -> list[Parameter]:
        """Parameters to train."""
        found = [each for pair in self._adapters.values() for part in pair for each in part.parameters()]
        return [*found, *self._norms.parameters]

    def on_progress(self, done: float) -> None:
        """Do nothing."""

    def terms(self) -> Terms:
        """The trained terms."""
        linear = {
            path: LinearTerms(
                bottleneck=Bottleneck(
                    array_of(down.weight), array_of(down.bias), array_of(up.weight), array_of(up.bias), "relu"
                )
            )
            for path, (down, up) in self._adapters.items()
        }
        return linear, self._norms.terms()


class LowRank:
    """Low-rank differences of the attention's query and value (LoRA, Hu et al.)."""

    def __init__(self, encoder: Module, base: BaseLayers, settings: TrainingSettings) -> None:
        self._parts: dict[str, tuple[Linear, Linear]] = {}
        for path, layer in base.linear.items():
            if path.endswith(_LOW_RANK):
                outputs, inputs = layer.shape
                down = Linear(inputs, settings.rank, bias=False)
                up = Linear(settings.rank, outputs, bias=False)
                torch.nn.init.kaiming_uniform_(down.weight, a=math.sqrt(5))
                torch.nn.init.zeros_(up.weight)
                self._parts[path] = down, up
                _add(encoder.get_submodule(path), Sequential(down, up, _Times(_SCALE)), of_output=False)

    @property
    def parameters(self) -> list[Parameter]:
        """Parameters to train."""
        return [each for pair in self._parts.values() for part in pair for each in part.parameters()]

    def on_progress(self, done: float) -> None:
        """Do nothing."""

    def terms(self) -> Terms:
        """The trained terms."""
        linear = {
            path: LinearTerms(delta=LowRankDelta(array_of(down.weight), array_of(up.weight), _SCALE))
            for path, (down, up) in self._parts.items()
        }
        return linear, {}


class _Times(Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self._factor * values


def _add(layer: Module, branch: Module, *, of_output: bool) -> None:
    """Add a branch to a layer's output: a function of the output, or of the layer's input."""

    def add(_: Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = output + branch(output if of_output else inputs[0])
        return found

    layer.register_forward_hook(add)
