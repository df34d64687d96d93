"""The unified form of a fine-tuned task (PetS §3.1): what it adds to a frozen encoder, layer by layer.

A layer that computes y = x·Wᵀ + b for all tasks computes for task t

    y = x·Wᵀ + b + x·Δᵀ + bias                    sparse or low-rank difference, bias difference
    y = y + up·σ(down·z + down_bias) + up_bias    bottleneck adapter; z is y, or the normalised sum of y and residual

where W and b are shared. A normalisation uses the task's weight and bias instead of the shared ones. Every kind of
fine-tuning is expressed by these terms; engines know no kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from tidal.pets.vocabulary import VocabularyHead
from tidal.tasks.low_rank import LowRankDelta as LowRankDelta

Activation = Literal["relu", "gelu", "silu"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SparseDelta:
    """A sparse difference of a weight matrix [outputs, inputs], in compressed rows.

    Attributes:
        starts: Index in `columns` where each row begins, uint32 [outputs + 1].
        columns: Column of each entry, uint16 [entries], ascending within a row.
        values: Value of each entry, float32 [entries].
    """

    starts: npt.NDArray[np.uint32]
    columns: npt.NDArray[np.uint16]
    values: FloatArray


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """An adapter on a layer's output: y + up·σ(down·z + down_bias) + up_bias.

    It reads the output itself, z = y (Houlsby et al.), or the output after the residual sum and the normalisation that
    follow the layer, z = LayerNorm(y + residual) (Pfeiffer et al.).

    Attributes:
        down: Weight of the first product, float32 [width, outputs].
        down_bias: Bias of the first product, float32 [width].
        up: Weight of the second product, float32 [outputs, width].
        up_bias: Bias of the second product, float32 [outputs].
        activation: Activation between both products; `gelu` is the exact one (erf).
        after_norm: Whether it reads the normalised sum of output and residual instead of the output.
    """

    down: FloatArray
    down_bias: FloatArray
    up: FloatArray
    up_bias: FloatArray
    activation: Activation
    after_norm: bool = False


@dataclass(frozen=True, slots=True)
class LinearTerms:
    """What a task adds at a linear layer.

    Attributes:
        delta: Difference of the weight matrix, or None.
        bias: Difference of the bias, float32 [outputs], or None.
        bottleneck: Adapter on the output, or None.
    """

    delta: SparseDelta | LowRankDelta | None = None
    bias: FloatArray | None = None
    bottleneck: Bottleneck | None = None


@dataclass(frozen=True, slots=True)
class NormTerms:
    """Weight and bias of a task's normalisation, which replace the shared ones, float32 [width] each."""

    weight: FloatArray
    bias: FloatArray


@dataclass(frozen=True)
class Head:
    """A task's head: a linear layer on the pooled vector or on every token's hidden state, or a pooling of these.

    Attributes:
        weight: float32 [outputs, width]; [0, width] of a head without a linear layer, or with the base's weights.
        bias: float32 [outputs].
        labels: Names of the labels; empty if the task has none.
        task: Name of the task of encoders that the head answers, see `tidal.pets.heads`.
        settings: Settings of the task in the manifest, see `tidal.encoder_tasks`.
        token_types: Whether the task's texts have token types; if not, all are 0.
        vocabulary: Layers before the linear layer of a head that scores the words of the vocabulary, else None.
    """

    weight: FloatArray
    bias: FloatArray
    labels: tuple[str, ...]
    task: str = "classification"
    settings: Mapping[str, Any] = field(default_factory=dict)
    token_types: bool = True
    vocabulary: VocabularyHead | None = None

    @property
    def tied(self) -> bool:
        """Whether the weights of the linear layer are the base's word embeddings."""
        return self.vocabulary is not None and self.vocabulary.form.tied

    @property
    def bytes(self) -> int:
        """Memory of the head's own arrays in bytes."""
        return _bytes(self) - (self.weight.nbytes if self.tied else 0)

    def loaded(self, words: FloatArray | None) -> Head:
        """The head as an engine keeps it: with arrays of its own, and with the base's weights if it has none.

        Args:
            words: The base's word embeddings, float32 [vocabulary, width], which are not copied.
        """
        vocabulary = self.vocabulary
        if vocabulary is not None:
            vocabulary = vocabulary.with_arrays({name: array.copy() for name, array in vocabulary.arrays.items()})
        weight = words if self.tied and words is not None else self.weight.copy()
        return replace(self, weight=weight, bias=self.bias.copy(), vocabulary=vocabulary)


@dataclass(frozen=True, slots=True)
class TaskTerms:
    """All terms of a task, and its head.

    Attributes:
        head: Head of the task.
        linear: Terms of linear layers by the layer's path.
        norm: Terms of normalisations by the layer's path.

    Paths are those of the encoder's modules as Hugging Face names them, without the name of the model around the
    encoder: `encoder.layer.0.output.dense`, `pooler.dense`, `embeddings.LayerNorm`.
    """

    head: Head
    linear: Mapping[str, LinearTerms] = field(default_factory=dict)
    norm: Mapping[str, NormTerms] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Memory of all arrays in bytes."""
        return _bytes(self)


@dataclass(frozen=True, slots=True)
class EncoderOutputs:
    """What an encoder computes for a batch.

    Attributes:
        pooled: Pooled vectors, float32 [rows, width].
        hidden: Last hidden states, float32 [rows, 1, width] of the first tokens, or [rows, tokens, width]; those of
            padding are undefined. None of an encoder that was exported without them.
        received: Attention that each token receives, float32 [rows, tokens], summed over layers, heads and the row's
            queries (Tabi §4.2); 0 for padding. None unless it was requested.
    """

    pooled: FloatArray
    hidden: FloatArray | None
    received: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A linear layer of the base that tasks may change.

    Attributes:
        weight: Shared weight, float32 [outputs, inputs].
        bias: Shared bias, float32 [outputs].
    """

    weight: FloatArray
    bias: FloatArray

    @property
    def shape(self) -> tuple[int, int]:
        """Number of outputs and inputs."""
        return self.weight.shape[0], self.weight.shape[1]


@dataclass(frozen=True, slots=True)
class NormLayer:
    """A normalisation of the base that tasks may change: the shared weight and bias, float32 [width] each."""

    weight: FloatArray
    bias: FloatArray


@dataclass(frozen=True, slots=True)
class BaseLayers:
    """The layers of a frozen encoder that tasks may change.

    Attributes:
        digest: SHA-256 of the encoder's weights in hexadecimal, by which a task names its base.
        width: Size of the pooled vector, which heads read.
        linear: Linear layers by path.
        norm: Normalisations by path.
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
    if is_dataclass(found):
        return sum(_bytes(getattr(found, each.name)) for each in fields(found))
    return 0
