"""Texts with a vector each, and the search for the nearest ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument

Floats = npt.NDArray[np.float32]
TEXTS, VECTORS = "texts.txt", "vectors.npy"


@dataclass(frozen=True, slots=True)
class TextIndex:
    """Texts and their vectors.

    Attributes:
        texts: UTF-8 texts, BYTES [texts].
        vectors: FP32 [texts, dimensions].
    """

    texts: npt.NDArray[Any]
    vectors: Floats


def read_index(folder: Path) -> TextIndex:
    """Read `texts.txt`, one text per line, and `vectors.npy`, their vectors in the same order.

    Args:
        folder: Folder of the version.

    Raises:
        InvalidArgument: A file is missing or not valid, or the two have different numbers of texts.
    """
    try:
        lines = (folder / TEXTS).read_text(encoding="utf-8").splitlines()
        vectors = np.load(folder / VECTORS, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"{folder}: expected {TEXTS}, one text per line in UTF-8, and {VECTORS}, their vectors as `tidal embed` "
            f"writes them: {error}"
        ) from None
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or not np.isfinite(vectors).all():
        raise InvalidArgument(
            f"{folder / VECTORS} has {vectors.dtype} of shape {list(vectors.shape)}; expected finite float32 or "
            "float16 of shape [texts, dimensions]"
        )
    if not lines or len(lines) != len(vectors):
        raise InvalidArgument(
            f"{folder}: {TEXTS} has {len(lines)} lines and {VECTORS} has {len(vectors)} vectors; expected one vector "
            "for each text, and at least one text"
        )
    return TextIndex(np.array([line.encode() for line in lines], object), vectors.astype(np.float32))


def nearest(vectors: Floats, query: Floats, count: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the vectors with the largest scalar products with a query: the largest cosines, if all have length 1.

    Args:
        vectors: FP32 [texts, dimensions].
        query: FP32 [dimensions].
        count: Number of vectors; all if there are fewer.

    Returns:
        Their indices and products, both [count], largest first; of equal ones the first vector first.
    """
    products = vectors @ query
    count = min(count, len(products))
    # All that are as large as the last one, so that equal products are in the order of the vectors.
    least = np.partition(products, len(products) - count)[len(products) - count]
    large = np.flatnonzero(products >= least)
    best = large[np.argsort(-products[large], kind="stable")][:count]
    return best, np.asarray(products[best], np.float32)
