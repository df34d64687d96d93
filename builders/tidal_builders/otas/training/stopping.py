"""Early stopping: training ends when the accuracy on validation images stops rising, and the best epoch is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class EarlyStopping:
    """The epoch with the highest accuracy so far, and its parameters.

    Args:
        patience: Number of epochs without a higher accuracy after which training ends.

    Attributes:
        epoch: Number of the best epoch, from 1; 0 before the first.
        accuracy: Its accuracy on the validation images.
        parameters: Its parameters by name.
    """

    def __init__(self, patience: int) -> None:
        self.epoch, self.accuracy = 0, -1.0
        self.parameters: dict[str, torch.Tensor] = {}
        self._patience = patience

    def record(self, epoch: int, accuracy: float, parameters: Mapping[str, torch.Tensor]) -> None:
        """Record a finished epoch; of equally accurate ones the first is the best."""
        if accuracy > self.accuracy:
            self.epoch, self.accuracy = epoch, accuracy
            self.parameters = {name: tensor.detach().clone() for name, tensor in parameters.items()}

    def ends_after(self, epoch: int) -> bool:
        """Return whether training ends after an epoch that was recorded."""
        return epoch - self.epoch >= self._patience

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"epoch": self.epoch, "accuracy": self.accuracy, "parameters": self.parameters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.epoch, self.accuracy, self.parameters = state["epoch"], state["accuracy"], state["parameters"]
