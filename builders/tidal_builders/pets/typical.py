"""A task of every kind in the published settings (PetS Table 4) with random values, for verification and profiling."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tidal.pets.kinds.adapter import accepts_adapter
from tidal.pets.kinds.positions import sparse_delta
from tidal.pets.opening import PETS_ENGINES, PetsEngineKind
from tidal.pets.terms import (
    BaseLayers,
    Bottleneck,
    FloatArray,
    Head,
    LinearLayer,
    LinearTerms,
    LowRankDelta,
    NormTerms,
    SparseDelta,
    TaskTerms,
)

TYPICAL_KINDS = ("adapter", "bitfit", "diff_pruning", "lora", "maskbert")
_DENSE_KINDS = ("adapter", "bitfit", "lora")
# Published settings: width of a bottleneck, rank (Hu et al.), shares of a matrix that differ and that are masked.
_BOTTLENECK, _RANK = 64, 8
_DIFFERENT, _MASKED = 0.005, 0.05
# Layers that LoRA changes: the attention's query and value.
_LOW_RANK = ("query", "value", "q_lin", "v_lin")
_CLASSES = 3
# Standard deviation of the drawn values as a share of that of the weights that they change.
_SHARE = 0.1


def typical_task(kind: str, base: BaseLayers, seed: int = 0, *, whole: Collection[str] = ()) -> TaskTerms:
    """Make a random task.

    Args:
        kind: Kind of the task, one of `TYPICAL_KINDS`.
        base: Layers of the base that it is made for.
        seed: Seed; equal seeds give equal tasks.
        whole: Paths of linear layers for which the task has a whole weight matrix, whatever its kind.
    """
    draw = _Draw(kind, seed)
    linear = {path: terms for path, layer in base.linear.items() if (terms := draw.linear(path, layer)) is not None}
    for path in whole:
        layer = base.linear[path]
        outputs, inputs = layer.shape
        values = draw.values(outputs * inputs, spread=inputs**-0.5)
        linear[path] = LinearTerms(sparse_delta(np.arange(outputs * inputs), values, layer.shape))
    norm = {}
    if kind in ("adapter", "bitfit", "diff_pruning"):
        norm = {
            path: NormTerms(own.weight + draw.like(own.weight), own.bias + draw.like(own.bias))
            for path, own in base.norm.items()
        }
    weight = draw.values(_CLASSES, base.width, spread=base.width**-0.5)
    labels = tuple(f"class {number}" for number in range(_CLASSES))
    return TaskTerms(Head(weight, draw.values(_CLASSES), labels), linear, norm)


def served_kinds(engine: PetsEngineKind) -> tuple[str, ...]:
    """The typical kinds that an engine can serve.

    Args:
        engine: Name of the engine.
    """
    return TYPICAL_KINDS if PETS_ENGINES[engine].sparse else _DENSE_KINDS


class _Draw:
    def __init__(self, kind: str, seed: int) -> None:
        self._kind = kind
        self._random = np.random.default_rng([seed, TYPICAL_KINDS.index(kind)])

    def values(self, *shape: int, spread: float = _SHARE) -> FloatArray:
        return self._random.normal(0, spread, shape).astype(np.float32)

    def like(self, shared: FloatArray) -> FloatArray:
        return self.values(*shared.shape, spread=_SHARE * max(float(shared.std()), 0.01))

    def linear(self, path: str, layer: LinearLayer) -> LinearTerms | None:
        outputs, inputs = layer.shape
        own: LinearTerms | None = None
        match self._kind:
            case "adapter" if accepts_adapter(path):
                width = min(_BOTTLENECK, outputs)
                down, up = self.values(width, outputs, spread=outputs**-0.5), self.values(outputs, width, spread=0.01)
                own = LinearTerms(bottleneck=Bottleneck(down, self.values(width), up, self.values(outputs), "relu"))
            case "bitfit":
                own = LinearTerms(bias=self.like(layer.bias))
            case "diff_pruning":
                own = LinearTerms(self._sparse(layer, _DIFFERENT), self.like(layer.bias))
            case "lora" if path.endswith(_LOW_RANK):
                rank = min(_RANK, outputs, inputs)
                up = self.values(outputs, rank, spread=_SHARE * max(float(layer.weight.std()), 0.01))
                own = LinearTerms(LowRankDelta(self.values(rank, inputs, spread=1.0), up, 2.0 / rank))
            case "maskbert":
                own = LinearTerms(self._sparse(layer, _MASKED))
        return own

    def _sparse(self, layer: LinearLayer, share: float) -> SparseDelta:
        weights = layer.weight.reshape(-1)
        positions = np.flatnonzero(self._random.random(weights.size) < share)
        values = -weights[positions] if self._kind == "maskbert" else self.values(len(positions))
        return sparse_delta(positions, values, layer.shape)
