"""The thread that sends parts and detects cancelled requests while the next iteration runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tidal.flover.generation import Generation

# A cancellation check is a call to the server process. Generations with slots are checked at the first interval, after
# every step of a large model and some of a small one, or less often, up to the longest, where checks would take more
# than a share of the time. Waiting ones are checked at the last.
_CHECK_INTERVAL_S, _LONGEST_CHECK_INTERVAL_S, _WAITING_CHECK_INTERVAL_S = 0.02, 0.06, 0.25
_CHECK_SHARE = 0.03
# Share of the time spent on sending. A part costs this process, the server and the client much the same for one token
# as for several; with many generations on few cores that is as much as a token's share of the decode step.
_SEND_SHARE = 0.1


@dataclass(slots=True)
class SendPacer:
    """Decides when tokens that may wait for later ones are sent, so that sending takes a tenth of the time.

    Attributes:
        max_delay_s: Longest delay of a token in seconds.
        due: `time.monotonic()` seconds from which delayed tokens are sent.
    """

    max_delay_s: float
    due: float = 0.0

    def sent(self, began: float, ended: float) -> None:
        """Record that delayed tokens were sent between two times."""
        self.due = ended + min(self.max_delay_s, (ended - began) * (1 / _SEND_SHARE - 1))


class Responder:
    """Sends the parts of generations, and detects which of their clients have cancelled.

    The first token of a text and its end are sent at once. Tokens in between are sent as one part when sending is due:
    the fewer generations run, the fewer tokens are in a part. Cancellations are checked after iterations.

    Args:
        max_delay_s: Longest time in seconds that a token is delayed to be sent with later ones.
    """

    def __init__(self, max_delay_s: float) -> None:
        self._changed = threading.Condition()
        self._pacer = SendPacer(max_delay_s)
        self._urgent: dict[Generation, None] = {}
        self._delayed: dict[Generation, None] = {}
        self._open: Sequence[Generation] = ()
        self._check_at = self._checked_waiting_at = 0.0
        self._closing = False

    def send(self, *generations: Generation) -> None:
        """Queue generations that have a part to send."""
        with self._changed:
            changed = False
            for generation in generations:
                if generation.urgent:
                    self._delayed.pop(generation, None)
                    self._urgent[generation] = None
                    changed = True
                elif generation not in self._urgent:
                    changed = changed or not self._delayed
                    self._delayed[generation] = None
            if changed:
                self._changed.notify()

    def iteration_ended(self, generations: Sequence[Generation]) -> None:
        """Start a round of cancellation checks, once its time has come.

        Args:
            generations: All waiting and running generations.
        """
        with self._changed:
            if not self._open:  # else the thread waits for its time
                self._changed.notify()
            self._open = generations

    def close(self) -> None:
        """Let the thread end once everything is sent."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def run(self) -> None:
        """Run rounds of checks and sending until `close`."""
        while True:
            with self._changed:
                while not (self._urgent or self._closing or self._is_due() or self._check_is_due()):
                    self._changed.wait(self._wait_s())
                if self._closing and not (self._urgent or self._delayed):
                    return
                urgent, self._urgent = self._urgent, {}
                delayed: dict[Generation, None] = {}
                if self._closing or self._is_due():
                    delayed, self._delayed = self._delayed, {}
                opened: Sequence[Generation] = ()
                if self._check_is_due():
                    opened, self._open = self._open, ()
            # Check first: a cancelled generation occupies slots that others wait for.
            if opened:
                self._check_cancelled(opened)
            for generation in urgent:
                generation.send_part()
            if delayed:
                began = time.monotonic()
                for generation in delayed:
                    generation.send_part()
                self._pacer.sent(began, time.monotonic())

    def _is_due(self) -> bool:
        return bool(self._delayed) and time.monotonic() >= self._pacer.due

    def _check_is_due(self) -> bool:
        return bool(self._open) and time.monotonic() >= self._check_at

    def _wait_s(self) -> float | None:
        """Seconds until tokens or a check are due; None where neither waits."""
        times = [*([self._pacer.due] if self._delayed else []), *([self._check_at] if self._open else [])]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _check_cancelled(self, generations: Sequence[Generation]) -> None:
        now, began_s = time.monotonic(), time.thread_time()
        with_waiting = now - self._checked_waiting_at > _WAITING_CHECK_INTERVAL_S
        if with_waiting:
            self._checked_waiting_at = now
        checked = (generation.response for generation in generations if with_waiting or generation.admitted)
        for response in dict.fromkeys(checked):
            if not response.cancelled and response.request.cancelled():
                response.cancelled = True
        # Not the time that has passed: beside fast steps a check waits for its turn, ten times as long as it runs.
        self._check_at = time.monotonic() + check_interval_s(time.thread_time() - began_s)


def check_interval_s(round_s: float) -> float:
    """Return the seconds until the next round of cancellation checks.

    Args:
        round_s: Processor seconds of the last one.
    """
    return min(_LONGEST_CHECK_INTERVAL_S, max(_CHECK_INTERVAL_S, round_s * (1 / _CHECK_SHARE - 1)))
