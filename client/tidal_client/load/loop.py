"""The open loop of a run: sends each request at its time, whether earlier ones have ended or not."""

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
# Time between connecting and the first request, in which the connections become ready.
_LEAD_S = 0.05
# Python's thread switch interval during a run; the default of 5 ms would delay sends.
_SWITCH_S = 0.0005


class Outcomes:
    """Records the ends of requests; senders report them from any thread."""

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
        """Record that a request ended; only its first end counts.

        Args:
            number: Number of the request.
            error: Its error; None: it was answered.
        """
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
    """Sends the requests of a run by number; each ends in a call of `Outcomes.finish`."""

    def send(self, number: int) -> None:
        """Send a request without waiting for its response."""

    def close(self) -> None:
        """Close the connections; no request is in flight."""


@dataclass(frozen=True, slots=True)
class SendLog:
    """Send times and processor use of a run."""

    #: When each request was sent, seconds from the start of the run, [requests].
    times: Times
    #: Processor time of this process during the run, all threads, in seconds.
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
    """Send every request at its time, wait until all have ended, and close the sender.

    Args:
        times: Send times in seconds from the start of the run, ascending, [requests].
        sending: Sender of the requests.
        outcomes: Receives the ends of the requests.
        drain_timeout_s: Time to wait for ends after the last send, in seconds; requests that have not ended by then
            count as `DEADLINE_EXCEEDED`. None: no limit.
        progress: Called from a separate thread during the run.
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
    """Prevent delays by Python: exempt existing objects from garbage collection, shorten the switch interval."""
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()
