"""Interface for running batches, in this process or on other models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidal.arlo.model import TokenRow
from tidal.requests import Array


class BatchRunner(Protocol):
    """Runs batches on engines of this process or on other models of the server; one thread per lane may call it."""

    def run(self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None) -> dict[str, Array]:
        """Pad rows for a runtime and run them.

        Args:
            lane: Lane of the policy's batch.
            runtime: Index into the manifest's runtimes.
            rows: Tokens of the queries.
            deadline: Earliest deadline of the queries as `time.monotonic()` in seconds; None: no deadline.

        Returns:
            Arrays by output name, one row per query: `logits` FP32 [rows, classes] and the manifest's extra outputs.

        Raises:
            ModelUnavailable: The lane cannot run anything now; the caller requeues the queries.
            Exception: The engine failed on these queries.
        """
