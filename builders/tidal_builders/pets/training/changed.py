"""Kinds that change a frozen encoder's own weights: biases, sparse differences, and masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import Module, Parameter
from torch.nn.utils import parametrize

from tidal.pets.kinds.positions import sparse_delta
from tidal.pets.terms import BaseLayers, FloatArray, LinearTerms, NormTerms
from tidal_builders.pets.training.settings import TrainingSettings

Terms = tuple[Mapping[str, LinearTerms], Mapping[str, NormTerms]]
# Share of the training during which differences are dense; then the largest are kept.
_DENSE = 0.4
# Number of updates of a mask per training: sorting ten million scores takes a tenth of a second.
_CHOICES = 60


class Norms:
    """Weights and biases of all normalisations."""

    def __init__(self, encoder: Module, base: BaseLayers, *, weights: bool = True) -> None:
        self._layers = {path: encoder.get_submodule(path) for path in base.norm}
        parts = ("weight", "bias") if weights else ("bias",)
        self.parameters = [_trained(layer, part) for layer in self._layers.values() for part in parts]

    def terms(self) -> dict[str, NormTerms]:
        """The trained weights and biases."""
        return {path: NormTerms(*map(_values, (layer.weight, layer.bias))) for path, layer in self._layers.items()}


class Biases:
    """Biases of all linear layers, and the normalisations (BitFit, Ben Zaken et al.)."""

    def __init__(self, encoder: Module, base: BaseLayers, settings: TrainingSettings) -> None:
        self._norms = Norms(encoder, base)
        self._biases = _Biases(encoder, base)

    @property
    def parameters(self) -> list[Parameter]:
        """Parameters to train."""
        return [*self._biases.parameters, *self._norms.parameters]

    def on_progress(self, done: float) -> None:
        """Do nothing."""

    def terms(self) -> Terms:
        """The trained terms."""
        return {path: LinearTerms(bias=bias) for path, bias in self._biases.differences().items()}, self._norms.terms()


class Differences:
    """Sparse differences of all linear layers' weights, and all biases (diff pruning).

    Guo et al. relax the number of changed weights (L0) and still cut by magnitude at the end to reach a sparsity
    exactly. For a training of minutes we omit the relaxation, which doubles the parameters and has temperatures to
    tune: differences are trained densely at first, then the largest of every matrix are kept and trained further.
    """

    def __init__(self, encoder: Module, base: BaseLayers, settings: TrainingSettings) -> None:
        self._base = base
        self._kept = settings.changed_share
        self._norms = Norms(encoder, base, weights=False)
        self._biases = _Biases(encoder, base)
        self._differences = {path: _Difference(layer.shape) for path, layer in base.linear.items()}
        for path, each in self._differences.items():
            _parametrise(encoder.get_submodule(path), each)

    @property
    def parameters(self) -> list[Parameter]:
        """Parameters to train."""
        found = [each.values for each in self._differences.values()]
        return [*found, *self._biases.parameters, *self._norms.parameters]

    def on_progress(self, done: float) -> None:
        """Keep only the largest differences after the dense phase; `done` is the share of the training."""
        if done >= _DENSE:
            for each in self._differences.values():
                each.cut(self._kept)

    def terms(self) -> Terms:
        """The trained terms."""
        biases = self._biases.differences()
        linear = {}
        for path, each in self._differences.items():
            found = array_of(each.difference())
            positions = np.flatnonzero(found)
            linear[path] = LinearTerms(
                sparse_delta(positions, found.reshape(-1)[positions], self._base.linear[path].shape), biases[path]
            )
        return linear, self._norms.terms()


class Masks:
    """Binary masks of all linear layers' weights, trained straight through a threshold (MaskBert, Zhao et al.).

    A weight's mask is 0 if its score is among the lowest of its matrix. Initially these are the smallest weights.
    """

    def __init__(self, encoder: Module, base: BaseLayers, settings: TrainingSettings) -> None:
        self._base = base
        self._chosen = 0
        self._masks = {path: _Mask(layer.weight, settings.masked_share) for path, layer in base.linear.items()}
        for path, each in self._masks.items():
            _parametrise(encoder.get_submodule(path), each)

    @property
    def parameters(self) -> list[Parameter]:
        """Parameters to train."""
        return [each.scores for each in self._masks.values()]

    def on_progress(self, done: float) -> None:
        """Update the masks at regular intervals; `done` is the share of the training."""
        if done * _CHOICES >= self._chosen + 1 or done >= 1:
            self._chosen = int(done * _CHOICES)
            for each in self._masks.values():
                each.choose()

    def terms(self) -> Terms:
        """The trained terms: minus the weight where the mask is 0."""
        linear = {}
        for path, each in self._masks.items():
            layer = self._base.linear[path]
            masked = np.flatnonzero(~each.keeps().numpy())
            linear[path] = LinearTerms(sparse_delta(masked, -layer.weight.reshape(-1)[masked], layer.shape))
        return linear, {}


class _Biases:
    """Biases of all linear layers that have one."""

    def __init__(self, encoder: Module, base: BaseLayers) -> None:
        self._base = base
        self._layers = {path: encoder.get_submodule(path) for path in base.linear}
        self.parameters = [_trained(layer, "bias") for layer in self._layers.values() if layer.bias is not None]

    def differences(self) -> dict[str, FloatArray]:
        """From the shared ones, [outputs] each."""
        return {
            path: _values(layer.bias) - self._base.linear[path].bias if layer.bias is not None else np.zeros_like(
                self._base.linear[path].bias
            )
            for path, layer in self._layers.items()
        }  # fmt: skip


class _Difference(Module):
    """A weight matrix with a difference."""

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__()
        self.values = Parameter(torch.zeros(shape))
        self._kept: torch.Tensor | None = None

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.difference()

    def difference(self) -> torch.Tensor:
        return self.values if self._kept is None else self.values * self._kept

    def cut(self, share: float) -> None:
        if self._kept is None:
            with torch.no_grad():
                size = self.values.abs().flatten()
                kept = torch.zeros_like(size)
                kept[size.topk(max(1, round(share * size.numel()))).indices] = 1
                self._kept = kept.view_as(self.values)


class _Through(torch.autograd.Function):
    """1 where a score lies above the threshold, else 0; gradients pass as if it were the score itself."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
        return (scores > threshold).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


class _Mask(Module):
    """A weight matrix with some weights set to 0."""

    def __init__(self, weight: FloatArray, masked: float) -> None:
        super().__init__()
        # Ranks between 0 and 1, the largest weight's the highest.
        rank = np.empty(weight.size, np.float32)
        rank[np.abs(weight).reshape(-1).argsort(kind="stable")] = np.arange(weight.size, dtype=np.float32) / weight.size
        self.scores = Parameter(torch.from_numpy(rank.reshape(weight.shape)))
        self._masked = max(1, round(masked * weight.size))
        self.choose()

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        mask: torch.Tensor = _Through.apply(self.scores, self._threshold)  # type: ignore[no-untyped-call]
        return weight * mask

    def choose(self) -> None:
        self._threshold = self.scores.detach().flatten().kthvalue(self._masked).values

    def keeps(self) -> torch.Tensor:
        """[weights] where the mask is 1."""
        return (self.scores.detach() > self._threshold).flatten()


def array_of(tensor: torch.Tensor) -> FloatArray:
    """A tensor's values as float32, in memory of their own."""
    return np.array(tensor.detach().to(torch.float32).numpy())


def _parametrise(layer: Module, change: Module) -> None:
    parametrize.register_parametrization(layer, "weight", change)


def _trained(layer: Module, part: str) -> Parameter:
    # A copy: the base's arrays may share the parameter's memory.
    parameter = Parameter(layer.get_parameter(part).detach().clone())
    setattr(layer, part, parameter)
    return parameter


def _values(tensor: Any) -> FloatArray:
    assert isinstance(tensor, torch.Tensor)
    return array_of(tensor)
