"""A request whose rows run in batches with rows of other requests."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar, cast

from tidal.errors import TidalError
from tidal.requests import PendingRequest
from tidal.serving.endings import cancellation

Result = TypeVar("Result")


class RequestRows(Generic[Result]):
    """A request and the results of its rows so far; all methods may be called from any thread.

    Args:
        request: Request whose rows run.
        count: Number of its rows.

    Attributes:
        request: Request whose rows run.
        ended: Whether the request needs no further results, for example because it has failed.
    """

    def __init__(self, request: PendingRequest, count: int) -> None:
        self.request = request
        self.ended = False
        self._results: list[Result | None] = [None] * count
        self._missing = count
        self._lock = threading.Lock()

    def finish(self, row: int, result: Result) -> bool:
        """Store a row's result, once per row.

        Args:
            row: Index of the row in its request.
            result: Result of the row's query.

        Returns:
            Whether this was the last result: the caller answers the request.
        """
        self._results[row] = result
        with self._lock:
            self._missing -= 1
            return self._missing == 0

    def fail(self, error: TidalError) -> None:
        """Answer the request with an error; its other rows need not run."""
        if not self.ended:
            self.ended = True
            self.request.fail(error)

    @property
    def results(self) -> list[Result]:
        """Results by row; complete once `finish` has returned True."""
        return cast(list[Result], self._results)

    def wanted(self, now: float) -> bool:
        """Whether a queued row of the request should still run; one that was cancelled is failed here.

        Args:
            now: Current `time.monotonic()`, in seconds.
        """
        if self.ended or self.request.answered:
            return False
        cancelled = cancellation(self.request, now)
        if cancelled is not None:
            self.fail(cancelled)
        return cancelled is None
