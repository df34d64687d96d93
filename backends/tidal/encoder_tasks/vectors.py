"""Forms of embeddings: truncated to fewer dimensions, and as float16, int8 or bits. Pure."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
#: Names of the forms.
VECTOR_OUTPUTS = ("embedding", "embedding_fp16", "embedding_int8", "embedding_binary")
# An int8 component is this many times the component of the normalised vector.
INT8_SCALE = 127


def normalized(vectors: Floats) -> Floats:
    """Return vectors [rows, dimensions] with a length of 1; a vector of zeros stays as it is."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


def truncated(vectors: Floats, dimensions: int, *, normalize: bool) -> Floats:
    """Return the first dimensions of Matryoshka embeddings (Kusupati et al. 2022).

    Args:
        vectors: FP32 [rows, dimensions of the model].
        dimensions: Number of dimensions to keep.
        normalize: Whether the vectors have a length of 1, which the shorter ones then have too.
    """
    kept = vectors[:, :dimensions]
    return normalized(kept) if normalize and dimensions < vectors.shape[1] else kept


class Vectors:
    """Embeddings and their other forms, each computed at first use.

    Args:
        embedding: FP32 [rows, dimensions].
    """

    def __init__(self, embedding: Floats) -> None:
        self.embedding = embedding

    @cached_property
    def embedding_fp16(self) -> npt.NDArray[np.float16]:
        """FP16 [rows, dimensions]."""
        return self.embedding.astype(np.float16)

    @cached_property
    def embedding_int8(self) -> npt.NDArray[np.int8]:
        """INT8 [rows, dimensions]: the normalised vectors, scaled by `INT8_SCALE` and rounded."""
        return np.asarray(np.rint(normalized(self.embedding) * INT8_SCALE), np.int8)

    @cached_property
    def embedding_binary(self) -> npt.NDArray[np.uint8]:
        """UINT8 [rows, dimensions / 8]: whether components are above 0, the first in the highest bit."""
        return np.packbits(self.embedding > 0, axis=-1)

    def __getitem__(self, output: str) -> npt.NDArray[Any]:
        """Return one of `VECTOR_OUTPUTS`, [rows, ...]."""
        if output not in VECTOR_OUTPUTS:
            raise KeyError(output)
        return np.asarray(getattr(self, output))
