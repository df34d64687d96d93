"""Sends a run's requests to several servers, by the rules of a client with several addresses."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from tidal_client.balance import Balance, Sent
from tidal_client.errors import RequestError
from tidal_client.load.sender import Finish, RequestSender
from tidal_client.retrying import RETRYABLE
from tidal_client.transports.addresses import Address


class BalancedSender:
    """A sender to several servers, see `Balance`; a request that is sent again goes to another server first.

    Args:
        addresses: Addresses of the servers, with the same protocol.
        open_sender: Opens the sender to one server.
        model: Model of the requests.
        finish: Called at the end of each attempt.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        open_sender: Callable[[Address, Finish], RequestSender],
        model: str,
        finish: Finish,
    ) -> None:
        self._model, self._finish = model, finish
        self._balance = Balance(len(addresses), time.monotonic, random.random)
        self._lock = threading.Lock()
        self._sent: dict[int, Sent] = {}
        self._tried: dict[int, set[int]] = {}
        self._senders = [open_sender(each, self._ended) for each in addresses]

    def send(self, number: int, payload: bytes) -> None:
        """See `RequestSender.send`."""
        with self._lock:
            sent = self._sent[number] = self._balance.choose(self._model, self._tried.get(number, ()))
        self._senders[sent.address].send(number, payload)

    def close(self) -> None:
        """See `RequestSender.close`."""
        for sender in self._senders:
            sender.close()

    def _ended(self, number: int, error: RequestError | None) -> None:
        with self._lock:
            sent = self._sent.pop(number)
            self._balance.ended(sent)
            if error is None:
                self._balance.answered(sent)
            else:
                self._balance.failed(sent, error)
            if isinstance(error, RETRYABLE):
                tried = self._tried.setdefault(number, set())
                if len(tried | {sent.address}) == len(self._senders):
                    tried.clear()
                tried.add(sent.address)
            else:
                self._tried.pop(number, None)
        self._finish(number, error)
