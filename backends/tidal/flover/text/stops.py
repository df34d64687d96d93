"""Ending a generation at a text, wherever its pieces are cut."""

from __future__ import annotations

from collections.abc import Sequence


class StopWatch:
    """Passes a text on and ends it before the first of the stops that appears in it.

    Text that may be the beginning of a stop is held back until the next pieces say whether it is.

    Args:
        stops: texts of at least one character each.
    """

    __slots__ = ("_held", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """The text that can be passed on, and whether a stop was found behind it. Nothing is to follow a stop."""
        text = self._held + piece
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self._held = ""
            return text[: min(places)], True
        held = max((_beginning(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def end(self) -> str:
        """What was held back, when nothing follows."""
        held, self._held = self._held, ""
        return held


def _beginning(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with, and is not all of it."""
    place = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while place >= 0:
        if stop.startswith(text[place:]):
            return len(text) - place
        place = text.find(stop[0], place + 1)
    return 0
