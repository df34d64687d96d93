"""Bounded numbers of outstanding requests per model, and when refused clients should come back."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidal_client.errors import Unavailable
from tidal_gateway.errors import Refusal, is_full
from tidal_gateway.upstream.policies import DrainRate, retry_after_s
from tidal_gateway.worker_table import WorkerTable, create_worker_table

_ROWS: Final = 1024
_NO_VALUES: Final = struct.Struct("<")


def create_lane_table(path: Path) -> None:
    """Create the file in which several workers share their numbers of outstanding requests."""
    create_worker_table(path, _ROWS, _NO_VALUES)


@dataclass(slots=True)
class _Lane:
    """Outstanding requests of one model in this worker.

    Attributes:
        row: Row of the model in the table of all workers; None for none.
        count: Their number.
        rate: Rate at which they are answered.
    """

    row: int | None
    count: int = 0
    rate: DrainRate = field(default_factory=DrainRate)


class Lanes:
    """Outstanding requests of all models.

    The limit holds for all workers together. They do not lock the table, so that together they may exceed it by one
    request each.

    Args:
        limit: Maximum number of outstanding requests of one model in all workers.
        table: File that `create_lane_table` created; None for a single worker.
        workers: Number of workers.

    Attributes:
        full: Models that refused the last request to them.
    """

    def __init__(self, limit: int, table: Path | None = None, workers: int = 1) -> None:
        self._limit, self._workers = limit, workers
        self._table = None if table is None else WorkerTable(table, _ROWS, _NO_VALUES)
        self._lanes: dict[str, _Lane] = {}
        self.full: set[str] = set()

    def outstanding(self) -> dict[str, int]:
        """Number of outstanding requests of this worker by model."""
        return {model: lane.count for model, lane in self._lanes.items()}

    def close(self) -> None:
        """Close the table."""
        if self._table is not None:
            self._table.close()

    def check(self, model: str) -> None:
        """Refuse a request that `lane` would refuse now, before anything is computed for it.

        Raises:
            Refusal: The model has too many outstanding requests.
        """
        lane = self._lanes.get(model)
        if lane is not None:
            self._check(model, lane)

    @contextmanager
    def lane(self, model: str) -> Iterator[None]:
        """Count a request of a known model as outstanding until the block ends.

        Raises:
            Refusal: The model has too many outstanding requests, or the block raised that its own queue is full.
        """
        lane = self._lanes.get(model)
        if lane is None:
            lane = self._lanes[model] = _Lane(self._row(model))
        self._check(model, lane)
        self._add(lane, 1)
        drained = True
        try:
            yield
        except Unavailable as error:
            if not is_full(error):
                raise
            drained = False  # the model did not queue it
            lane.rate.pressed(time.monotonic())
            raise self._overloaded(lane, self._count(lane), str(error)) from None
        finally:
            self._add(lane, -1)
            if drained:
                lane.rate.answered(time.monotonic())

    def _check(self, model: str, lane: _Lane) -> None:
        count = self._count(lane)
        if count * 2 >= self._limit:
            lane.rate.pressed(time.monotonic())
        if count < self._limit:
            self.full.discard(model)
        else:
            self.full.add(model)
            raise self._overloaded(
                lane,
                self._limit,
                f"model '{model}' has {count} outstanding requests; accepted are up to max_outstanding, "
                f"{self._limit}: send the request again later",
            )

    def _count(self, lane: _Lane) -> int:
        return lane.count if self._table is None or lane.row is None else self._table.total(lane.row)

    def _overloaded(self, lane: _Lane, limit: int, message: str) -> Refusal:
        now = time.monotonic()
        # The workers share the requests about evenly.
        per_second = lane.rate.per_second(now) * self._workers
        wait_s = retry_after_s(self._count(lane), limit, per_second, lane.rate.silent_s(now))
        return Refusal(429, message, code="overloaded", retry_after_s=wait_s)

    def _row(self, model: str) -> int | None:
        if self._table is None:
            return None
        with self._table.locked():
            return self._table.row(model)

    def _add(self, lane: _Lane, change: int) -> None:
        lane.count += change
        if self._table is not None and lane.row is not None:
            self._table.add(lane.row, change)
