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
    #: Labels that reach the threshold of a multi-label model, likeliest first; may be empty.
    labels: tuple[str, ...] | None = None
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
    #: Index of the text within the request: index of its prompt times the option ``n``, plus its index among them.
    index: int = 0
    #: Number of prompt tokens that the server had computed before; None except in the last part.
    cached_tokens: int | None = None
    #: Log probability of each of ``tokens``; None unless the option ``logprobs`` is set.
    logprobs: tuple[float, ...] | None = None
    #: For each of ``tokens`` the log probabilities of the most likely tokens by id, the most likely first; None unless
    #: the option ``top_logprobs`` is set.
    top_logprobs: tuple[Mapping[int, float], ...] | None = None
    #: Text of each of ``tokens``; of a token that is a part of a character ``bytes:`` and its bytes as ``\\xe2``; None
    #: unless the option ``logprobs`` is set.
    token_texts: tuple[str, ...] | None = None
    #: Texts of the tokens of ``top_logprobs`` by id.
    top_token_texts: tuple[Mapping[int, str], ...] | None = None


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
