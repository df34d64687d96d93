"""The early router: a logistic regression on hashed n-grams, which reads a query's text before any level runs.

It is no part of Tabi, whose dispatcher reads the first level's confidence: routers of this kind choose between models
without running either (RouteLLM, Ong et al. 2024).
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidal.tabi.choice import single_level
from tidal.tabi.manifest import Candidate, TabiManifest

_WORD = re.compile(r"\w+|[^\w\s]")


def ngram_buckets(texts: Sequence[bytes], buckets: int) -> npt.NDArray[np.int64]:
    """Return the buckets of a query's words and pairs of adjacent words, in lower case and hashed by CRC-32.

    Args:
        texts: Text of the query, or the two texts of a pair, UTF-8; the same word in the other text is another n-gram.
        buckets: Number of buckets.

    Returns:
        Buckets, ascending, each once, [n]; empty for texts without words.
    """
    found = set()
    for part, text in enumerate(texts):
        before = ""
        for word in _WORD.findall(text.decode("utf-8", "replace").lower()):
            for ngram in (word, f"{before}\n{word}"):
                found.add(zlib.crc32(f"{part}\n{ngram}".encode("utf-8", "replace")) % buckets)
            before = word
    return np.array(sorted(found), np.int64)


class EarlyRouter:
    """Estimates from a query's text alone how likely a level does not know the answer.

    Args:
        weights: Weight of each bucket of n-grams, [buckets].
        bias: Log odds of a query without n-grams.
    """

    def __init__(self, weights: npt.ArrayLike, bias: float) -> None:
        self._weights = np.asarray(weights, np.float64)
        self._bias = bias

    def difficulty(self, texts: Sequence[bytes]) -> float:
        """Return the estimate of 1 - con(y) of Eq. 3, in [0, 1].

        A query is the vector of its n-grams, each 1 / √n, so that its length does not change the scale.

        Args:
            texts: Text of the query, or the two texts of a pair, UTF-8.
        """
        active = ngram_buckets(texts, len(self._weights))
        odds = self._bias + float(self._weights[active].sum()) / math.sqrt(max(len(active), 1))
        return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0


def load_early_routers(manifest: TabiManifest, version_dir: Path) -> dict[int, EarlyRouter]:
    """Read the early routers of a version, by the index of the level that they may skip.

    Args:
        manifest: Manifest of the version.
        version_dir: Folder of the version.
    """
    found = {}
    for info in manifest.early_routers:
        with np.load(version_dir / info.file, allow_pickle=False) as arrays:
            found[info.level] = EarlyRouter(arrays["weights"], float(arrays["bias"]))
    return found


def after_early_routing(
    candidate: Candidate, routers: Mapping[int, EarlyRouter], queries: Sequence[Sequence[bytes]]
) -> Candidate:
    """Return the candidate that a request uses: with its first level, or its last one alone if that is skipped.

    The rows of a request skip the level together, if all of them are too difficult for it.

    Args:
        candidate: Configuration that was selected for the request.
        routers: Early routers by level.
        queries: Texts of each row, UTF-8.
    """
    if candidate.early is None:
        return candidate
    router = routers[candidate.levels[0]]
    if all(router.difficulty(texts) > candidate.early for texts in queries):
        return single_level(candidate, candidate.levels[-1])
    return candidate
