"""A number for each text, or for each pair of a query and a document."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tidal.encoder_tasks.head import RowHead, Settings
from tidal.encoder_tasks.sigmoid import sigmoid
from tidal.errors import InvalidArgument
from tidal.requests import Array, PendingRequest

Activation = Literal["identity", "sigmoid"]


class RerankSettings(Settings):
    """What a manifest stores about a reranker."""

    activation: Activation = Field(description="function of the logit that gives the score")


class Scores:
    """Outputs of a batch of scores.

    Args:
        logits: FP32 [rows, outputs].
        activation: Function of the first logit that gives the score.
    """

    def __init__(self, logits: npt.NDArray[np.float32], activation: Activation = "identity") -> None:
        self._logits = logits
        self._activation = activation

    @cached_property
    def score(self) -> npt.NDArray[np.float32]:
        """Scores, FP32 [rows, 1]."""
        first = self._logits[:, :1]
        return sigmoid(first) if self._activation == "sigmoid" else first

    def __getitem__(self, output: str) -> Array:
        """Return `logits` or `score`, [rows, ...]."""
        return self._logits if output == "logits" else self.score


class RegressionHead(RowHead):
    """The model's own numbers.

    Args:
        settings: None.
        labels: Names of the outputs.
    """

    def __init__(self, settings: Settings, labels: tuple[str, ...]) -> None:
        super().__init__(("logits", "score"))

    def batch(self, outputs: Mapping[str, Array]) -> Scores:
        """Scores of the batch."""
        return Scores(outputs["logits"])


class RerankHead(RowHead):
    """Scores of pairs.

    Args:
        settings: Settings of the manifest.
        labels: None.
    """

    reads_requests = True

    def __init__(self, settings: RerankSettings, labels: tuple[str, ...]) -> None:
        super().__init__(("logits", "score"))
        self._activation = settings.activation

    def read(self, request: PendingRequest) -> Mapping[str, Array]:
        """Check that each text has a pair."""
        if "text_input" in request.inputs and "text_pair" not in request.inputs:
            raise InvalidArgument(
                "text_pair is missing; this model scores pairs: send queries as text_input and documents as text_pair"
            )
        return request.inputs

    def batch(self, outputs: Mapping[str, Array]) -> Scores:
        """Scores of the batch."""
        return Scores(outputs["logits"], self._activation)
