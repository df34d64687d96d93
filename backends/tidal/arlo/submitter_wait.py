"""How long threads that submit queries wait for the batches that they start. Pure: the caller gives the times."""

from __future__ import annotations

import math

from tidal.arlo.policies import ArloBatch

# Longest wait, and the longest expected latency of the batches that it is for. It hides later arrivals from the policy
# for that time, as `tidal.triton.answer_list` does.
HERE_S = 1e-3
_HERE_PER_ROW_S = 0.3e-3
SHORT_S = 1e-3
_SHORT_PER_ROW_S = 0.1e-3
# Both while a batch runs alone and no query waits: a later arrival could not start before it has ended, and is not one
# that a full queue refuses. Deadlines count from the time at which the service sees a query, so there is no such wait
# for so many seconds after a query with a deadline.
ALONE_S = 25e-3
_WITHOUT_DEADLINES_S = 10.0
# Queries that come sooner than this after such a wait arrived during it. The engines idle until they are read, 0.9 ms
# with MiniLM on two cores of an Intel Xeon, which is more than the wake of a thread that a wait saves.
_AT_ONCE_S = 1.5e-3
# Weight of the newest wait in the share of waits that hid arrivals, the largest share with which there are further
# waits, and the number of batches of which one is waited for above it, as a trial.
_WEIGHT = 1 / 8
_MOST_HIDDEN = 0.2
_TRIAL_EVERY = 16


class SubmitterWait:
    """Limits of the waits of submitting threads: short ones, and longer ones for a batch that runs alone.

    Times are in seconds by `time.monotonic()`.

    Args:
        grouped: Whether a submission may bring several requests; otherwise there are none to batch, and no wait.
    """

    def __init__(self, grouped: bool) -> None:
        self._grouped = grouped
        self._last_deadline = -math.inf  # arrival of the last query with a deadline
        self._ended: float | None = None  # end of the last wait for a batch that ran alone, until the next submission
        self._hidden = 0.0
        self._batches = 0

    def deadline_at(self, arrival: float) -> None:
        """Record the arrival of a query with a deadline."""
        self._last_deadline = arrival

    def submitted_at(self, now: float) -> None:
        """Record a submission."""
        if self._ended is not None:
            self._hidden += ((now - self._ended < _AT_ONCE_S) - self._hidden) * _WEIGHT
            self._ended = None

    def limit_s(self, batch: ArloBatch, now: float, *, since: float, rows: int) -> float:
        """Return the longest wait for a batch that was started, in seconds; 0 for none.

        Args:
            batch: The batch.
            now: Present time.
            since: Time of the submission, whose waits are bounded together.
            rows: Number of rows that were submitted together.
        """
        if not self._grouped:
            return 0.0
        alone = batch.alone and now - self._last_deadline > _WITHOUT_DEADLINES_S
        if alone:
            self._batches += 1
            alone = self._hidden <= _MOST_HIDDEN or self._batches % _TRIAL_EVERY == 0
        short_s, here_s = (ALONE_S, ALONE_S) if alone else (SHORT_S, HERE_S)
        if batch.seconds > short_s + _SHORT_PER_ROW_S * len(batch.queries):
            return 0.0
        return max(0.0, since + here_s + _HERE_PER_ROW_S * rows - now)

    def waited(self, batch: ArloBatch, now: float) -> None:
        """Record the end of a wait in which a batch has ended."""
        if batch.alone:
            self._ended = now
