"""Results of models that embed, score and mark texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tidal_client.results import Array

#: Element types of embeddings.
EmbeddingType = Literal["float32", "float16", "int8", "binary"]


# Arrays have no single truth value, so results with arrays are compared by identity.
@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """Embeddings of texts, one row per text. `numpy.asarray` accepts it."""

    #: [texts, dimensions] float32, float16 or int8; ``binary``: [texts, dimensions / 8] uint8, the signs as bits.
    array: Array
    dtype: EmbeddingType

    @property
    def dimensions(self) -> int:
        """Number of dimensions of a vector."""
        return int(self.array.shape[1]) * (8 if self.dtype == "binary" else 1)

    def __len__(self) -> int:
        return len(self.array)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.array(self.array, dtype, copy=True) if copy else np.asarray(self.array, dtype)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document and its score for a query."""

    #: Index of the document in the list that was sent.
    index: int
    score: float
    document: str


@dataclass(frozen=True, slots=True)
class Entity:
    """A part of a text and its label. `text[start:end]` of the sent text is this part."""

    label: str
    #: Probability of the label, from 0 to 1.
    score: float
    #: First character, from 0.
    start: int
    #: End in characters, exclusive.
    end: int
    #: The part as the server returned it.
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question: a part of the context. An empty text: the context has no answer."""

    text: str
    #: Probability of the answer, from 0 to 1.
    score: float
    #: First character of the answer in the context, from 0.
    start: int
    #: End in characters, exclusive.
    end: int
    #: All answers that were requested with `top_k`, best first; the first is this one.
    candidates: tuple[Answer, ...] = ()


@dataclass(frozen=True, slots=True)
class MaskPrediction:
    """A token for a mask."""

    token: str
    token_id: int
    #: Probability of the token, from 0 to 1.
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class SparseEmbedding:
    """A sparse embedding: weights of terms of the vocabulary; all others are 0."""

    #: Token ids, ascending, [terms] int32.
    indices: npt.NDArray[np.int32]
    #: Weights, [terms] float32.
    weights: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.indices)

    def as_dict(self) -> dict[int, float]:
        """Return the weights by token id."""
        pairs: Any = zip(self.indices.tolist(), self.weights.tolist(), strict=True)
        return dict(pairs)
