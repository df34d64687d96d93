"""A service that the test controls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tidal.requests import PendingRequest
from tidal.service import ServiceContext


class Running:
    """A service controlled by the test."""

    def __init__(self, context: ServiceContext) -> None:
        self.context = context
        self.closed = threading.Event()
        self.got: list[PendingRequest] = []
        self.on_submit: Callable[[], None] = lambda: None

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        self.on_submit()
        self.got.extend(requests)

    def close(self, timeout_s: float) -> None:
        self.closed.set()
