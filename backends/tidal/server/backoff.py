"""Pauses before a process that keeps failing is restarted."""

from __future__ import annotations

from dataclasses import dataclass

from tidal.serving.backoff import backoff_s

# The 1st restart in a row is immediate; pauses before the 2nd and the later ones.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
# What has served for this long since its last restart is stable again.
STABLE_AFTER_S = 120.0


@dataclass(frozen=True, slots=True)
class Restarts:
    """Restarts in a row of one model or server.

    Attributes:
        count: Number of restarts in a row.
        last_s: Time of the last one, in seconds of a monotonic clock.
    """

    count: int = 0
    last_s: float = float("-inf")

    def stable(self, now_s: float) -> bool:
        """Whether the last restart is more than `STABLE_AFTER_S` ago, so that the count starts again."""
        return now_s - self.last_s >= STABLE_AFTER_S

    def pause_s(self, now_s: float) -> float:
        """Remaining pause before the next restart, in seconds."""
        pause_s = backoff_s(self.count - 1, _FIRST_PAUSE_S, _LONGEST_PAUSE_S) if self.count else 0.0
        return max(0.0, self.last_s + pause_s - now_s)

    def restarted(self, now_s: float) -> Restarts:
        """The same with one more restart, at this time."""
        return Restarts(self.count + 1, now_s)
