"""Retries of a run's requests, by the rules of a client with retries."""

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

#: Serialises a request for an attempt, from its number and the rest of its deadline in milliseconds (None: none).
Encode = Callable[[int, float | None], bytes]


class RetrySender:
    """A sender that retries failed requests after a pause, on a separate thread.

    Args:
        open_sender: Opens the sender of all attempts; its argument is called at the end of each attempt.
        encode: Serialises a request for an attempt, see `Encode`.
        finish: Called once per request, at the end of its last attempt.
        retries: Maximum number of retries of a request.
        timeout_s: Time after the first attempt within which the last one begins, in seconds.
        deadlines_ms: Deadline of each request in milliseconds; None: no deadline.
        addresses: Number of servers that the sender sends to.
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
        addresses: int = 1,
    ) -> None:
        self._encode, self._finish = encode, finish
        self._retries, self._timeout_s, self._deadlines_ms = retries, timeout_s, deadlines_ms
        self._addresses = addresses
        #: Number of further attempts of each request, [requests].
        self.resent: npt.NDArray[np.intp] = np.zeros(len(deadlines_ms), np.intp)
        self._pending: dict[int, Attempts] = {}
        self._due: list[tuple[float, int]] = []
        self._closing = False
        self._changed = threading.Condition()
        self._sender = open_sender(self._ended)
        self._thread = threading.Thread(target=self._send_due, name="tidal-load-retries", daemon=True)
        self._thread.start()

    def send(self, number: int, payload: bytes) -> None:
        """See `RequestSender.send`."""
        tries = self._pending[number] = Attempts(self._retries, self._timeout_s, self._deadlines_ms[number])
        tries.moves = self._addresses - 1
        self._sender.send(number, payload)

    def close(self) -> None:
        """See `RequestSender.close`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._sender.close()

    def _ended(self, number: int, error: RequestError | None) -> None:
        tries = self._pending[number]
        try:
            pause_s = None if error is None else tries.pause_s(error)
        except RequestError:
            pause_s = None
        if pause_s is None:
            del self._pending[number]
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
            self._sender.send(number, self._encode(number, self._pending[number].left_ms))
