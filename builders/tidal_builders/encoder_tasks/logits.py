"""Tasks whose engines return the logits of the source model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tidal.errors import InvalidArgument
from tidal_builders.encoder_tasks.prepared import Prepared, PrepareOptions


class Logits(torch.nn.Module):
    """The model's own logits."""

    def forward(self, outputs: Any, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = outputs.logits
        return logits


def prepare_labels(folder: Path, model: Any, options: PrepareOptions) -> Prepared:
    """Prepare a model with one output per label.

    Raises:
        InvalidArgument: The spec names another number of labels.
    """
    classes = int(model.config.num_labels)
    missing = [number for number in range(classes) if number not in model.config.id2label]
    if missing and not options.labels:
        raise InvalidArgument(
            f"field 'labels': id2label in {folder}/config.json has no name for label {missing[0]} of {classes}; name "
            f"all {classes} labels in the spec"
        )
    labels = options.labels or tuple(str(model.config.id2label[number]) for number in range(classes))
    if len(labels) != classes:
        raise InvalidArgument(
            f"field 'labels': expected {classes} labels, one per class of the model, got {len(labels)}"
        )
    return Prepared(Logits(), classes, labels)
