"""A weight for each word of the vocabulary that a text is about (SPLADE, Formal et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tidal.encoder_tasks.head import RowResult, Settings, refuse_pairs, stacked
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.requests import Array, PendingRequest


class SparseHead:
    """Token ids with a weight above 0.

    Args:
        settings: None.
        labels: None.
    """

    reads_requests = True

    def __init__(self, settings: Settings, labels: tuple[str, ...]) -> None:
        pass

    def read(self, request: PendingRequest) -> Mapping[str, Array]:
        """Refuse pairs."""
        refuse_pairs(request, "an embedding is of one text")
        return request.inputs

    def batch(self, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The outputs of the engines, FP32 [rows, vocabulary]."""
        return outputs

    def answers(
        self, request: PendingRequest, rows: Sequence[RowResult], tokens: Sequence[TokenRow]
    ) -> dict[str, Array]:
        """Ids in ascending order and their weights, padded with -1 and 0; see `TaskHead.answers`."""
        weights = [row.values("weights", per_token=False) for row in rows]
        ids = [np.flatnonzero(row > 0) for row in weights]
        outputs: dict[str, Array] = {}
        if request.wants("indices"):
            outputs["indices"] = stacked([row.astype(np.int32) for row in ids], -1)
        if request.wants("weights"):
            outputs["weights"] = stacked([row[each] for row, each in zip(weights, ids, strict=True)])
        return outputs
