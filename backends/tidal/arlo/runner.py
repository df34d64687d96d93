"""What runs a batch, wherever the engines are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidal.arlo.model import TokenRow
from tidal.requests import Array


class BatchRunner(Protocol):
    """Runs batches: engines in this process, or other models of the server. Safe for a thread a lane."""

    def run(self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None) -> dict[str, Array]:
        """Pad rows as the runtime takes them, and run them.

        Args:
            lane: as the policy's batch says.
            runtime: index into the manifest's runtimes.
            rows: the queries.
            deadline: earliest deadline of the queries, `time.monotonic()` seconds, or None.

        Returns:
            Arrays by output name, one row a query: `logits` FP32 [rows, classes] and the manifest's extra outputs.

        Raises:
            ModelUnavailable: the lane cannot run anything now; the queries are to be put back.
            Exception: the engine failed at these queries.
        """
