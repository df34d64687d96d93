"""The loop of a run: requests go out at their times, whatever became of those before them."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from tidal_client.errors import DeadlineExceeded, RequestError
from tidal_client.load.arrivals import Times

OK: Final = "OK"
#: Called twice a second with the numbers of requests sent and ended.
Progress = Callable[[int, int], None]

PENDING: Final = -1
_PROGRESS_S = 0.5
# Between connecting and the first request, for the connections to settle.
_LEAD_S = 0.05
# Python lets a thread run this long before another may; its default, 5 ms, would delay sends.
_SWITCH_S = 0.0005


class Outcomes:
    """Ends of requests, as senders report them from whatever thread."""

    def __init__(self, count: int) -> None:
        self.done = np.zeros(count)
        self.status = np.full(count, PENDING, np.intp)
        self.messages: dict[str, str] = {}
        self.codes = [OK]
        self.ended = 0
        self.start = 0.0
        self.all_ended = threading.Event()
        self._lock = threading.Lock()

    def now(self) -> float:
        """Seconds since the start of the run."""
        return time.perf_counter() - self.start

    def finish(self, number: int, error: RequestError | None) -> None:
        """Record that a request ended, by its number; only its first end counts."""
        now = time.perf_counter()
        with self._lock:
            if self.status[number] != PENDING:
                return
            self.done[number] = now - self.start
            self.status[number] = 0 if error is None else self._code(error)
            self.ended += 1
            if self.ended == len(self.status):
                self.all_ended.set()

    def _code(self, error: RequestError) -> int:
        if error.code not in self.messages:
            self.messages[error.code] = str(error)
            self.codes.append(error.code)
        return self.codes.index(error.code)


class NumberedSender(Protocol):
    """Sends the requests of a run; each ends in a call of `Outcomes.finish`."""

    def send(self, number: int) -> None:
        """Send a request by its number; returns at once."""

    def close(self) -> None:
        """Close the connections; nothing is in flight."""


@dataclass(frozen=True, slots=True)
class SendLog:
    """How the loop went."""

    #: When each request was sent, seconds from the start of the run, [requests].
    times: Times
    #: Processor seconds of this process meanwhile, all threads.
    cpu_s: float
    #: Seconds since the epoch at the start of the run.
    started: float


def send_all(
    times: Times,
    sending: NumberedSender,
    outcomes: Outcomes,
    *,
    drain_timeout_s: float | None,
    progress: Progress | None,
) -> SendLog:
    """Send every request at its time and wait until all have ended; closes what sends.

    Args:
        times: when to send, seconds from the start of the run.
        sending: what sends.
        outcomes: where it records the ends.
        patience_s: seconds to wait for ends after the last send, or None for as long as they take; what has none then
            counts as `DEADLINE_EXCEEDED`.
        progress: called from a thread of its own meanwhile.
    """
    sent = np.zeros(len(times))
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(progress, sent, outcomes, over), name="tidal-load-progress")
    with _undisturbed():
        try:
            start = outcomes.start = time.perf_counter() + _LEAD_S
            started, cpu = time.time() + _LEAD_S, time.process_time()
            watcher.start()
            for number, moment in enumerate(times.tolist()):
                delay = start + moment - time.perf_counter()
                if delay > 0:
                    time.sleep(delay)
                sent[number] = time.perf_counter() - start
                sending.send(number)
            if not outcomes.all_ended.wait(drain_timeout_s):
                for number in np.flatnonzero(outcomes.status == PENDING):
                    outcomes.finish(int(number), DeadlineExceeded(f"no answer within {drain_timeout_s:g} s"))
            cpu = time.process_time() - cpu
        finally:
            over.set()
            watcher.join()
            sending.close()
    return SendLog(sent, cpu, started)


def _watch(progress: Progress | None, sent: Times, outcomes: Outcomes, over: threading.Event) -> None:
    if progress is not None:
        while not over.wait(_PROGRESS_S):
            progress(int(np.count_nonzero(sent)), outcomes.ended)
        progress(int(np.count_nonzero(sent)), outcomes.ended)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep Python itself from holding up sends: no full garbage collection over what is there already."""
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()
