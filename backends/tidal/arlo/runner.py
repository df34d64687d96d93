"""Interface for running batches, in this process or on other models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tidal.encoder_tasks.token_rows import TokenRow
from tidal.engines.base import StartedRun
from tidal.requests import Array


class BatchRunner(Protocol):
    """Runs batches on engines of this process or on other models.

    One thread per lane may call it, or as many as an instance is given queries at a time.
    """

    def run(self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None) -> dict[str, Array]:
        """Pad rows for a runtime and run them.

        Args:
            lane: Lane of the policy's batch.
            runtime: Index into the manifest's runtimes.
            rows: Tokens of the queries.
            deadline: Earliest deadline of the queries as `time.monotonic()` in seconds; None: no deadline.

        Returns:
            Arrays by output name, one row per query: the manifest's main output and its extra outputs.

        Raises:
            ModelUnavailable: The lane cannot run anything now; the caller requeues the queries.
            Exception: The engine failed on these queries.
        """


@runtime_checkable
class AsyncBatchRunner(BatchRunner, Protocol):
    """A runner whose caller can stop waiting for a batch."""

    def start(
        self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None = None
    ) -> StartedRun | None:
        """Start a batch, which has to be waited for before the next of its lane.

        Args:
            lane: See `run`.
            runtime: See `run`.
            rows: See `run`.
            deadline: See `run`.

        Returns:
            The run; None if the batch cannot run without a thread of the caller.
        """
