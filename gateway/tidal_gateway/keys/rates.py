"""Rates of keys, shared by all workers: requests and tokens per minute, concurrent requests."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidal_gateway.errors import Refusal
from tidal_gateway.keys.store import KeyEntry
from tidal_gateway.worker_table import WorkerTable, create_worker_table

_MINUTE_S: Final = 60.0
_ROWS: Final = 4096
# Theoretical arrival times of the two rates.
_RATES: Final = struct.Struct("<dd")


def admit(arrival: float, now: float, limit: int, cost: float = 1.0) -> tuple[float, float]:
    """Decide by the generic cell rate algorithm whether a rate of `limit` per minute allows `cost` more.

    Up to `limit` are allowed at once; they are replenished continuously.

    Args:
        arrival: Theoretical arrival time that the last call returned, in seconds; 0 at first.
        now: Current time in seconds.
        limit: Largest amount per minute.
        cost: Amount to use; 0 checks whether anything is left.

    Returns:
        The next theoretical arrival time, and 0 if it is allowed, else the seconds until it is.
    """
    interval = _MINUTE_S / limit
    begin = max(arrival, now)
    wait_s = begin + max(cost, 1.0) * interval - now - _MINUTE_S
    # Rounding must not refuse the last one of a minute.
    if wait_s > 1e-6 * interval:
        return arrival, wait_s
    return begin + cost * interval, 0.0


def charge(arrival: float, now: float, limit: int, cost: float) -> float:
    """Return the next theoretical arrival time after an amount that is known only afterwards."""
    return max(arrival, now) + cost * _MINUTE_S / limit


def create_table(path: Path) -> None:
    """Create the file that the workers share."""
    create_worker_table(path, _ROWS, _RATES)


class RateTable:
    """Rates in a file that all workers map.

    Args:
        path: File that `create_table` created.
    """

    def __init__(self, path: Path) -> None:
        self._table = WorkerTable(path, _ROWS, _RATES)

    @contextmanager
    def request(self, key: KeyEntry) -> Iterator[None]:
        """Count a request of a key until the block ends.

        Raises:
            Refusal: The key has used up its requests or tokens of this minute, or has too many requests in flight.
        """
        if not key.limited:
            yield
            return
        row = self._enter(key)
        try:
            yield
        finally:
            with self._table.locked():
                self._table.add(row, -1)

    def used(self, key: KeyEntry, tokens: int) -> None:
        """Charge a key for the tokens of an answered request."""
        if key.tokens_per_minute is None or not tokens:
            return
        with self._table.locked():
            row = self._row(key.id)
            requests, used = self._table.read(row)
            self._table.write(row, requests, charge(used, time.monotonic(), key.tokens_per_minute, tokens))

    def close(self) -> None:
        """Close the file."""
        self._table.close()

    def _enter(self, key: KeyEntry) -> int:
        now = time.monotonic()
        with self._table.locked():
            row = self._row(key.id)
            requests, used = self._table.read(row)
            if key.max_concurrency is not None:
                in_flight = self._table.total(row)
                if in_flight >= key.max_concurrency:
                    raise _refused(f"it has {in_flight} requests in flight", "max_concurrency", key.max_concurrency, 1)
            if key.tokens_per_minute is not None:
                _, wait_s = admit(used, now, key.tokens_per_minute, 0)
                if wait_s:
                    raise _refused("its tokens are used up", "tokens_per_minute", key.tokens_per_minute, wait_s)
            if key.requests_per_minute is not None:
                requests, wait_s = admit(requests, now, key.requests_per_minute)
                if wait_s:
                    raise _refused("its requests are used up", "requests_per_minute", key.requests_per_minute, wait_s)
            self._table.write(row, requests, used)
            self._table.add(row, 1)
        return row

    def _row(self, identifier: str) -> int:
        row = self._table.row(identifier)
        if row is None:
            raise Refusal(503, f"there are more than {_ROWS} keys with limits; restart the gateway", code="unavailable")
        return row


def _refused(why: str, limit: str, value: int, wait_s: float) -> Refusal:
    return Refusal(
        429,
        f"the key is limited: {why}; its {limit} is {value}: send the request again later",
        code="rate_limit_exceeded",
        retry_after_s=max(1, math.ceil(wait_s)),
    )
