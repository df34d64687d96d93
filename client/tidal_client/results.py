"""Results of the client's calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


# Arrays have no single truth value, so results are compared by identity.
@dataclass(frozen=True, slots=True, eq=False)
class Classification:
    """Result for one text or image. Outputs that the model does not return, or that were not requested, are None."""

    label: str | None
    #: Scores by class, [classes] float32.
    logits: npt.NDArray[np.float32] | None
    #: Probabilities by class, [classes] float32.
    probabilities: npt.NDArray[np.float32] | None
    #: Maximum input length of the runtime that served the query, in tokens.
    max_length: int | None
    #: This row of every further output, by name.
    other: Mapping[str, Array] = field(default_factory=dict)

    @property
    def top_probability(self) -> float | None:
        """Probability of the most likely class."""
        return None if self.probabilities is None else float(self.probabilities.max())


@dataclass(frozen=True, slots=True)
class Generated:
    """A generated text, or one part of a stream."""

    #: Generated text without the prompt; contains complete characters only.
    text: str
    #: Generated token ids, including the one that ended the text.
    tokens: tuple[int, ...]
    #: ``eos``, ``stop`` or ``length``; None except in the last part.
    finish_reason: str | None
    #: Number of tokens of the prompt; None except in the last part.
    prompt_tokens: int | None
    #: Number of generated tokens in total; None except in the last part.
    generated_tokens: int | None
    #: Index of the prompt within the request.
    index: int = 0


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a model."""

    name: str
    #: Triton datatype, such as ``FP32`` or ``BYTES``.
    datatype: str
    #: Sizes, with the batch axis first if the model has one; -1: any size.
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """A model's versions, inputs and outputs."""

    name: str
    versions: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
