"""Ending of commands that run until a signal."""

from __future__ import annotations

import signal
from typing import Any

from tidal.server.signals import Flag


def stop_on_signals(stop: Flag | None = None) -> Flag:
    """Set the returned flag on the first signal; a second signal ends the process at once.

    Args:
        stop: Flag to set, where a library replaced the handlers that an earlier call installed; None: a new one.
    """
    stop = stop or Flag()

    def receive(number: int, _frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, receive)
    return stop
