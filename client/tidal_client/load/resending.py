"""Requests of a load that are sent again, as a client with retries does."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tidal_client.errors import RequestError
from tidal_client.load.sender import Finish, RequestSender
from tidal_client.retrying import Attempts

#: A request's bytes for an attempt, given its number and the milliseconds left of its deadline (None: it has none).
Encode = Callable[[int, float | None], bytes]


class ResendingSender:
    """A sender that sends what failed again, after a pause, from a thread of its own.

    Args:
        open_sender: makes the sender that each attempt goes through, given what to call at its end.
        encode: see `Encode`.
        finish: called once for each request, at the end of its last attempt.
        retries: how often a request may be sent again.
        timeout_s: seconds within which the last attempt of a request has to begin.
        deadlines_ms: deadline of each request in milliseconds, or None.
    """

    def __init__(
        self,
        open_sender: Callable[[Finish], RequestSender],
        encode: Encode,
        finish: Finish,
        *,
        retries: int,
        timeout_s: float,
        deadlines_ms: Sequence[float | None],
    ) -> None:
        self._encode, self._finish = encode, finish
        self._retries, self._timeout_s, self._deadlines_ms = retries, timeout_s, deadlines_ms
        #: How often each request was sent again, [requests].
        self.resent: npt.NDArray[np.intp] = np.zeros(len(deadlines_ms), np.intp)
        self._open: dict[int, Attempts] = {}
        self._due: list[tuple[float, int]] = []
        self._closing = False
        self._changed = threading.Condition()
        self._sender = open_sender(self._ended)
        self._thread = threading.Thread(target=self._send_due, name="tidal-load-resending", daemon=True)
        self._thread.start()

    def send(self, number: int, payload: bytes) -> None:
        """See `Sender.send`."""
        self._open[number] = Attempts(self._retries, self._timeout_s, self._deadlines_ms[number])
        self._sender.send(number, payload)

    def close(self) -> None:
        """See `Sender.close`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._sender.close()

    def _ended(self, number: int, error: RequestError | None) -> None:
        tries = self._open[number]
        try:
            pause_s = None if error is None else tries.pause_s(error)
        except RequestError:
            pause_s = None
        if pause_s is None:
            del self._open[number]
            self._finish(number, error)
            return
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + pause_s, number))
            self._changed.notify()

    def _send_due(self) -> None:
        while True:
            with self._changed:
                while not self._closing and (not self._due or self._due[0][0] > time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._closing:
                    return
                number = heapq.heappop(self._due)[1]
            self.resent[number] += 1
            self._sender.send(number, self._encode(number, self._open[number].left_ms))
