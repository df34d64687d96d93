"""The stored tensors of one layer, with the base's layer that they change."""

from __future__ import annotations

from collections.abc import Mapping

from tidal.pets.terms import LinearLayer, NormLayer
from tidal.tasks.stored import StoredTensors
from tidal.tensor_file import Array


class LayerTensors(StoredTensors):
    """The tensors that a task's file holds for one layer of the base.

    Attributes:
        layer: The base's layer.
    """

    def __init__(self, path: str, layer: LinearLayer | NormLayer, tensors: Mapping[str, Array]) -> None:
        """Start with no tensor taken; `tensors` by part."""
        super().__init__(path, tensors)
        self.layer = layer

    @property
    def linear(self) -> LinearLayer:
        """The base's layer, known to be linear."""
        assert isinstance(self.layer, LinearLayer)
        return self.layer
