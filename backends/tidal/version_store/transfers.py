"""Transfers of many files at once, and their progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

# Called with the name of the running step, its bytes that are done, and its bytes in total.
Report = Callable[[str, int, int], None]
_T = TypeVar("_T")
_PARALLEL = 8


class ByteCount:
    """Bytes of a step that are done, counted by any thread.

    Args:
        report: Called after each change.
        step: Name of the step.
        total: Bytes of the whole step.
    """

    def __init__(self, report: Report, step: str, total: int) -> None:
        self._report, self._step, self._total = report, step, total
        self._done = 0
        self._lock = threading.Lock()
        report(step, 0, total)

    def add(self, count: int) -> None:
        """Add bytes that are done."""
        with self._lock:
            self._done += count
            self._report(self._step, self._done, self._total)


def in_parallel(run: Callable[[_T], object], items: Iterable[_T]) -> None:
    """Call a function for each item, a bounded number of them at once; after a failure no further one begins.

    Raises:
        Exception: The first failure, once the calls that had begun have ended.
    """
    with ThreadPoolExecutor(_PARALLEL) as pool:
        futures = [pool.submit(run, item) for item in items]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
