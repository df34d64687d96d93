"""The labelled data and what each level made of it: what calibration and search read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidal.text.words import WordTokenizer

# Values of `Data.part`. Temperatures and tuned weights come from the first, thresholds and the choice from the
# second; nothing that is chosen has seen the third.
CALIBRATION, SELECTION, REPORT = 0, 1, 2

# The attention that each token of a query received, special tokens included; float32 [length] a query.
Importance = tuple[npt.NDArray[np.float32], ...]


@dataclass(frozen=True, slots=True)
class Data:
    """Labelled queries.

    Attributes:
        texts: a text a query, or the two texts of a pair.
        truth: indices of the labels int64 [n], or a regression's values float64 [n].
        part: CALIBRATION, SELECTION or REPORT, int8 [n]; equal texts lie in one part.
    """

    texts: tuple[tuple[str, ...], ...]
    truth: npt.NDArray[np.int64] | npt.NDArray[np.float64]
    part: npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class LevelOutputs:
    """What one level answers to n queries, one at a time.

    Attributes:
        logits: [n, classes], float32; of a regression [n, 1].
        importance: attention that each token received (`attention_received`, special tokens included), float32
            [length] a query; None for a level that does not give it.
        latency_ms: time of each query, float64 [n].
    """

    logits: npt.NDArray[np.float32]
    importance: Importance | None
    latency_ms: npt.NDArray[np.float64]

    def take(self, rows: npt.NDArray[np.int64]) -> LevelOutputs:
        """The outputs on some of the queries."""
        importance = None if self.importance is None else tuple(self.importance[row] for row in rows.tolist())
        return LevelOutputs(self.logits[rows], importance, self.latency_ms[rows])

    def slowed(self, factor: float) -> LevelOutputs:
        """The same outputs, with times that are so many times as long."""
        return LevelOutputs(self.logits, self.importance, factor * self.latency_ms)


@dataclass(frozen=True, slots=True)
class LevelFacts:
    """One level and its outputs on all queries of the data.

    Attributes:
        name: short name from the spec.
        outputs: on the texts as they are.
        tokenizer: how it reads texts, for pruning by its attention.
    """

    name: str
    outputs: LevelOutputs
    tokenizer: WordTokenizer


class Rerun(Protocol):
    """Runs a level on shortened queries; results are kept by content, so that asking twice costs nothing."""

    def __call__(self, level: int, texts: Sequence[tuple[str, ...]], /) -> LevelOutputs:
        """Outputs of level `level` (an index into the sequence of LevelFacts) on pruned queries, one at a time."""
        ...
