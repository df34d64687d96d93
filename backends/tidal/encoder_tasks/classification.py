"""One label for each text."""

from __future__ import annotations

from collections.abc import Mapping

from tidal.encoder_tasks.head import RowHead, Settings
from tidal.requests import Array
from tidal.serving.classes import CLASS_OUTPUTS, ClassScores, label_array


class ClassHead(RowHead):
    """Labels and probabilities.

    Args:
        settings: None.
        labels: Names of the labels.
    """

    def __init__(self, settings: Settings, labels: tuple[str, ...]) -> None:
        super().__init__(CLASS_OUTPUTS)
        self._labels = label_array(labels)

    def batch(self, outputs: Mapping[str, Array]) -> ClassScores:
        """Logits of the batch, and what follows from them."""
        return ClassScores(outputs["logits"], self._labels)
