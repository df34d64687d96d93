"""Outputs of classifiers, computed once per batch; each answer is a slice of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tidal.answers import class_scores
from tidal.serving.softmax import softmax

Array = npt.NDArray[Any]
Head = TypeVar("Head")
Scores = TypeVar("Scores")
#: Outputs that every classifier has.
CLASS_OUTPUTS = ("label", "logits", "probabilities")


class BatchOutputs(Protocol):
    """Outputs of a batch by name."""

    def __getitem__(self, output: str, /) -> Array:
        """Return an output, [rows, ...]."""


def label_array(labels: Sequence[str]) -> Array:
    """Return labels as an array of UTF-8 `bytes`, of shape [classes]."""
    return np.array([label.encode() for label in labels], object)


class ClassScores(dict[str, Array]):
    """Arrays [rows, ...] by the names of `CLASS_OUTPUTS`: logits of a batch, and what follows from them at first use.

    Args:
        logits: FP32 [rows, classes].
        labels: Labels of the classes as `bytes`, of shape [classes].
    """

    def __init__(self, logits: npt.NDArray[np.float32], labels: Array) -> None:
        super().__init__(logits=logits)
        self._labels = labels

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """Logits, FP32 [rows, classes]."""
        return self["logits"]

    @property
    def probabilities(self) -> npt.NDArray[np.float32]:
        """Probabilities of the classes, FP32 [rows, classes]."""
        return self["probabilities"]

    @property
    def label(self) -> Array:
        """Most likely label of each row, BYTES [rows, 1]."""
        return self["label"]

    def __missing__(self, output: str) -> Array:
        scores = class_scores(self.logits, self._labels)
        if scores is not None:
            self["probabilities"], self["label"] = scores
        elif output == "probabilities":
            self[output] = softmax(self.logits, dtype=np.float32)
        else:
            self[output] = np.asarray(self._labels[self.logits.argmax(-1)][:, None])
        return self[output]


def score_rows(heads: Sequence[Head], score: Callable[[Head, list[int]], Scores]) -> list[tuple[Scores, int]]:
    """Score the rows of a batch, all rows of a head together.

    Args:
        heads: Head of each row.
        score: Scores rows of one head, given with their indices in the batch.

    Returns:
        For each row the scores of all rows of its head, and its index in them.
    """
    by_head: dict[int, list[int]] = {}
    for index, head in enumerate(heads):
        by_head.setdefault(id(head), []).append(index)
    found: dict[int, tuple[Scores, int]] = {}
    for indices in by_head.values():
        scores = score(heads[indices[0]], indices)
        found.update((index, (scores, row)) for row, index in enumerate(indices))
    return [found[index] for index in range(len(heads))]


def gather(rows: Sequence[tuple[BatchOutputs, int]], output: str) -> Array:
    """Return one output of a request.

    Args:
        rows: Outputs of the batch that each row of the request ran in, and the row's index in it.
        output: Name of an output that the batches have.

    Returns:
        Array [rows, ...]; a view of the batch's if the rows are consecutive in one batch.
    """
    scores, first = rows[0]
    if len(rows) == 1:
        return scores[output][first : first + 1]
    if all(each is scores and index == first + offset for offset, (each, index) in enumerate(rows)):
        return scores[output][first : first + len(rows)]
    return np.concatenate([scores[output][index : index + 1] for scores, index in rows])
