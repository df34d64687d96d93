"""The thread that talks to clients while the next iteration runs: it asks who has gone, and sends what came."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from tidal.flover.streams import Stream

# Asking whether a client has gone costs a call to the server process. Those that have a slot are asked about in each
# round; that one who waits has gone may be known a little later.
_WAITING_EVERY_S = 0.25


class Responder:
    """Sends what streams have for their clients, and finds out which of these have gone.

    A round follows each iteration. A stream whose round is late, because others take long to be sent, has what came
    meanwhile sent at once: clients that are slow to be reached get larger parts, not more and more of them.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._news: dict[Stream, None] = {}
        self._open: Sequence[Stream] = ()
        self._waiting_at = 0.0
        self._closing = False

    def send(self, stream: Stream) -> None:
        """A stream has something to send."""
        with self._changed:
            self._news[stream] = None
            self._changed.notify()

    def look_after(self, streams: Sequence[Stream]) -> None:
        """An iteration has ended; these streams wait or run."""
        with self._changed:
            self._open = streams
            self._changed.notify()

    def close(self) -> None:
        """Let the thread end when everything is sent."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def run(self) -> None:
        """Make rounds until `close`."""
        while True:
            with self._changed:
                while not (self._news or self._open or self._closing):
                    self._changed.wait()
                if self._closing and not self._news:
                    return
                news, self._news = self._news, {}
                opened, self._open = self._open, ()
            # Their slots are wanted: ask first.
            self._ask(opened)
            for stream in news:
                stream.send()

    def _ask(self, streams: Sequence[Stream]) -> None:
        now = time.monotonic()
        all_of_them = now - self._waiting_at > _WAITING_EVERY_S
        if all_of_them:
            self._waiting_at = now
        for stream in streams:
            if (all_of_them or stream.admitted) and not stream.withdrawn and stream.request.cancelled():
                stream.withdrawn = True
