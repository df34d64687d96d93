"""The unified form of a fine-tuned task (PetS §3.1): what it adds to a frozen encoder, layer by layer.

A layer that computes y = x·Wᵀ + b for all tasks computes for task t

    y = x·Wᵀ + b + x·Δᵀ + bias                    sparse or low-rank difference, bias difference
    y = y + up·σ(down·y + down_bias) + up_bias    bottleneck adapter on the layer's output

where W and b are shared, and a normalisation takes the task's weight and bias instead of its own. Every kind of
fine-tuning is expressed by these terms; what runs them knows no kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from tidal.tasks.low_rank import LowRankDelta as LowRankDelta

Activation = Literal["relu", "gelu", "silu"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SparseDelta:
    """A difference of a weight matrix [outputs, inputs], in compressed rows.

    Attributes:
        starts: [outputs + 1] uint32, where each row begins in `columns`.
        columns: [entries] uint16, ascending within a row.
        values: [entries] float32.
    """

    starts: npt.NDArray[np.uint32]
    columns: npt.NDArray[np.uint16]
    values: FloatArray


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """An adapter on a layer's output (Houlsby et al.): y + up·σ(down·y + down_bias) + up_bias.

    down [width, outputs], down_bias [width], up [outputs, width], up_bias [outputs]; `gelu` is the exact one (erf).
    """

    down: FloatArray
    down_bias: FloatArray
    up: FloatArray
    up_bias: FloatArray
    activation: Activation


@dataclass(frozen=True, slots=True)
class LinearTerms:
    """What a task adds at a linear layer; `bias` [outputs] is added to the shared one."""

    delta: SparseDelta | LowRankDelta | None = None
    bias: FloatArray | None = None
    bottleneck: Bottleneck | None = None


@dataclass(frozen=True, slots=True)
class NormTerms:
    """What a task's normalisation has instead of the shared weight and bias, [width] each."""

    weight: FloatArray
    bias: FloatArray


@dataclass(frozen=True, slots=True)
class Head:
    """A task's classifier on the pooled vector: weight [classes, width], bias [classes], and the classes' names."""

    weight: FloatArray
    bias: FloatArray
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskTerms:
    """All of a task: terms by the layer's path in the base, as Hugging Face names it, and its classifier.

    Paths are those of the encoder's modules, without the name of the model around it: `encoder.layer.0.output.dense`,
    `pooler.dense`, `embeddings.LayerNorm`.
    """

    head: Head
    linear: Mapping[str, LinearTerms] = field(default_factory=dict)
    norm: Mapping[str, NormTerms] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Memory that the arrays take."""
        return _bytes(self)


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A linear layer of the base that tasks may change; arrays are the shared ones, [outputs, inputs] and [outputs]."""

    weight: FloatArray
    bias: FloatArray

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.weight.shape[0], self.weight.shape[1]


@dataclass(frozen=True, slots=True)
class NormLayer:
    """A normalisation of the base that tasks may change, [width] each."""

    weight: FloatArray
    bias: FloatArray


@dataclass(frozen=True, slots=True)
class BaseLayers:
    """The layers of a frozen encoder that tasks may change, by path, and what identifies it.

    Attributes:
        digest: SHA-256 of the encoder's weights, hexadecimal: what a task names as its base.
        width: of the pooled vector, which heads read.
    """

    digest: str
    width: int
    linear: Mapping[str, LinearLayer]
    norm: Mapping[str, NormLayer]


def _bytes(found: Any) -> int:
    if isinstance(found, np.ndarray):
        return found.nbytes
    if isinstance(found, Mapping):
        return sum(_bytes(each) for each in found.values())
    slots: tuple[str, ...] = getattr(found, "__slots__", ())
    return sum(_bytes(getattr(found, name)) for name in slots)
