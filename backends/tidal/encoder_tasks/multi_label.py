"""Any number of labels for each text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tidal.encoder_tasks.head import RowHead, RowResult, Settings
from tidal.encoder_tasks.sigmoid import sigmoid
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.requests import Array, PendingRequest
from tidal.serving.classes import CLASS_OUTPUTS, gather, label_array

_THRESHOLD = 0.5


class LabelScores:
    """Logits of a batch, and what follows from them, computed at first use.

    Args:
        logits: FP32 [rows, labels].
        labels: Labels as `bytes`, of shape [labels].
    """

    def __init__(self, logits: npt.NDArray[np.float32], labels: Array) -> None:
        self._logits = logits
        self._labels = labels

    @cached_property
    def probabilities(self) -> npt.NDArray[np.float32]:
        """Probabilities of the labels, which are independent of each other, FP32 [rows, labels]."""
        return sigmoid(self._logits)

    @cached_property
    def label(self) -> Array:
        """Most likely label of each row, BYTES [rows, 1]."""
        return np.asarray(self._labels[self._logits.argmax(-1)][:, None])

    def __getitem__(self, output: str) -> Array:
        """Return `logits`, `probabilities` or `label`, [rows, ...]."""
        if output == "logits":
            return self._logits
        return self.probabilities if output == "probabilities" else self.label


class MultiLabelHead(RowHead):
    """Probabilities, and the labels above a threshold.

    Args:
        settings: None.
        labels: Names of the labels.
    """

    def __init__(self, settings: Settings, labels: tuple[str, ...]) -> None:
        super().__init__(CLASS_OUTPUTS)
        self._names = labels
        self._labels = label_array(labels)

    def batch(self, outputs: Mapping[str, Array]) -> LabelScores:
        """Logits of the batch, and what follows from them."""
        return LabelScores(outputs["logits"], self._labels)

    def answers(
        self, request: PendingRequest, rows: Sequence[RowResult], tokens: Sequence[TokenRow]
    ) -> dict[str, Array]:
        """Slice the batches' outputs, and list the labels of each row; see `TaskHead.answers`."""
        outputs = super().answers(request, rows, tokens)
        if request.wants("labels"):
            threshold = _THRESHOLD if request.options.threshold is None else request.options.threshold
            probabilities = gather([(row.batch, row.row) for row in rows], "probabilities")
            lists = [json.dumps(self._above(row, threshold), ensure_ascii=False).encode() for row in probabilities]
            outputs["labels"] = np.array(lists, object)[:, None]
        return outputs

    def _above(self, probabilities: npt.NDArray[np.float32], threshold: float) -> list[str]:
        """Return labels whose probability reaches the threshold, the most likely first."""
        order = np.argsort(-probabilities, kind="stable")
        return [self._names[index] for index in order.tolist() if probabilities[index] >= threshold]
