"""The thread that talks to clients while the next iteration runs: it asks who has gone, and sends what came."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tidal.flover.streams import Stream

# Asking whether a client has gone costs a call to the server process. Those that have a slot are asked about in each
# round; that one who waits has gone may be known a little later.
_WAITING_EVERY_S = 0.25
# A part costs this process, the server and the client much the same for one token as for some: together as much as a
# token's own share of a step where many run on few cores.
_SHARE = 0.1


@dataclass(slots=True)
class Pace:
    """When tokens are sent that may wait for the next of their texts: so that sending takes a tenth of the time.

    Attributes:
        longest_s: a token waits at most.
        due: `time.monotonic()` seconds from which they are sent.
    """

    longest_s: float
    due: float = 0.0

    def sent(self, began: float, ended: float) -> None:
        """They were, from `began` to `ended`."""
        self.due = ended + min(self.longest_s, (ended - began) * (1 / _SHARE - 1))


class Responder:
    """Sends what streams have for their clients, and finds out which of these have gone.

    Clients are asked about behind each iteration. A text's first token and its end are sent at once; what comes in
    between waits until sending is due, and goes as one part then: the fewer streams run, the fewer tokens.

    Args:
        longest_s: that a token waits so at most.
    """

    def __init__(self, longest_s: float) -> None:
        self._changed = threading.Condition()
        self._pace = Pace(longest_s)
        self._urgent: dict[Stream, None] = {}
        self._waiting: dict[Stream, None] = {}
        self._open: Sequence[Stream] = ()
        self._asked_all_at = 0.0
        self._closing = False

    def send(self, stream: Stream) -> None:
        """A stream has something to send."""
        with self._changed:
            if stream.urgent:
                self._waiting.pop(stream, None)
                self._urgent[stream] = None
                self._changed.notify()
            elif stream not in self._urgent:
                if not self._waiting:
                    self._changed.notify()
                self._waiting[stream] = None

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
                while not (self._urgent or self._open or self._closing or self._is_due()):
                    self._changed.wait(self._pace.due - time.monotonic() if self._waiting else None)
                if self._closing and not (self._urgent or self._waiting):
                    return
                urgent, self._urgent = self._urgent, {}
                waiting: dict[Stream, None] = {}
                if self._closing or self._is_due():
                    waiting, self._waiting = self._waiting, {}
                opened, self._open = self._open, ()
            # Their slots are wanted: ask first.
            self._ask(opened)
            for stream in urgent:
                stream.send()
            if waiting:
                began = time.monotonic()
                for stream in waiting:
                    stream.send()
                self._pace.sent(began, time.monotonic())

    def _is_due(self) -> bool:
        return bool(self._waiting) and time.monotonic() >= self._pace.due

    def _ask(self, streams: Sequence[Stream]) -> None:
        now = time.monotonic()
        all_of_them = now - self._asked_all_at > _WAITING_EVERY_S
        if all_of_them:
            self._asked_all_at = now
        for answer in dict.fromkeys(stream.answer for stream in streams if all_of_them or stream.admitted):
            if not answer.withdrawn and answer.request.cancelled():
                answer.withdrawn = True
