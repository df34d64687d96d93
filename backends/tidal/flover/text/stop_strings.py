"""Stop strings: end a text before the first of them, even if it spans several pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text on until one of the stop strings occurs in it.

    Text that may be the beginning of a stop string is held back until later pieces decide.

    Args:
        stops: Stop strings of at least one character each.
    """

    __slots__ = ("_held", "_over", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self._over = 0  # characters held back in which no stop string ends the text

    def pass_over(self, piece: str) -> str:
        """Return the text to pass on: a stop string that ends in this piece does not end the text, a later one does."""
        if not self._stops:
            return piece
        text = self._held + piece
        passed = self._hold(text)
        self._over = len(self._held)
        return passed

    def push(self, piece: str) -> tuple[str, bool]:
        """Return the text to pass on, and whether a stop string follows it; do not push after a stop string."""
        if not self._stops:
            return piece, False
        text = self._held + piece
        first = self._over + 1
        starts = [start for stop in self._stops if (start := text.find(stop, max(0, first - len(stop)))) >= 0]
        if starts:
            self._held = ""
            return text[: min(starts)], True
        passed = self._hold(text)
        self._over = max(0, self._over - len(passed))
        return passed, False

    def finish(self) -> str:
        """Return the text held back, once no piece follows."""
        held, self._held = self._held, ""
        return held

    def _hold(self, text: str) -> str:
        """Hold back the end of a text that may be the beginning of a stop string, and return what is before it."""
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start = text.find(stop[0], start + 1)
    return 0
