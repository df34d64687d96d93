"""What a client hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


# Arrays have no single truth value, so results compare by identity.
@dataclass(frozen=True, slots=True, eq=False)
class Classification:
    """One text's or image's answer. What the model does not return, or the call did not ask for, is None."""

    label: str | None
    #: Scores by class, [classes] float32.
    logits: npt.NDArray[np.float32] | None
    #: Probabilities by class, [classes] float32.
    probabilities: npt.NDArray[np.float32] | None
    #: Longest input in tokens of the runtime that served it.
    max_length: int | None
    #: This text's part of every other output, by name.
    other: Mapping[str, Array] = field(default_factory=dict)

    @property
    def top_probability(self) -> float | None:
        """Probability of the likeliest class."""
        return None if self.probabilities is None else float(self.probabilities.max())


@dataclass(frozen=True, slots=True)
class Generated:
    """A generated text, or a part of one: what came since the part before it."""

    #: Behind the prompt; never half a character.
    text: str
    #: Token ids, the one that ended the text included.
    tokens: tuple[int, ...]
    #: ``eos``, ``stop`` or ``length``; None in a part that is not the last.
    finish_reason: str | None
    #: Tokens of the prompt; in the last part.
    prompt_tokens: int | None
    #: Tokens of the whole generation; in the last part.
    generated_tokens: int | None
    #: Of its prompt among those of the request.
    index: int = 0


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a model."""

    name: str
    #: Triton's name of the type, for example ``FP32`` or ``BYTES``.
    datatype: str
    #: Sizes, the batch axis first where the model has one; -1 is any size.
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a model takes and returns."""

    name: str
    versions: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
