"""How long to wait before something that keeps ending is started again."""

from __future__ import annotations

from dataclasses import dataclass

from tidal.serving.backoff import backoff_s

# The 1st restart in a row is immediate; pauses before the 2nd and the later ones.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
# What served this long since its last restart is well again.
STABLE_AFTER_S = 120.0


@dataclass(frozen=True, slots=True)
class Restarts:
    """Restarts of one thing: how many in a row, and when the last was, by a clock in seconds."""

    count: int = 0
    last_s: float = float("-inf")

    def well(self, now_s: float) -> bool:
        """Whether the last restart is so long ago that the next one counts as the first."""
        return now_s - self.last_s >= STABLE_AFTER_S

    def pause_s(self, now_s: float) -> float:
        """What is left of the wait before the next restart."""
        pause_s = backoff_s(self.count - 1, _FIRST_PAUSE_S, _LONGEST_PAUSE_S) if self.count else 0.0
        return max(0.0, self.last_s + pause_s - now_s)

    def another(self, now_s: float) -> Restarts:
        """With a restart now."""
        return Restarts(self.count + 1, now_s)
