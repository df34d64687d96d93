"""The metrics of the `tabi` backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tidal.metrics import Metrics

_CONFIDENCE_BUCKETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.999)

# Why a query was answered without a level that it was re-routed to.
DegradationCause = Literal["failure", "deadline"]


class TabiMetrics:
    """The metric families `tidal_tabi_*`; the label `level` is a level's number, from 1.

    Args:
        metrics: Metrics of the model.
        levels: Numbers of the levels that may be called.
        candidates: Names of the candidates that may serve.
    """

    def __init__(self, metrics: Metrics, levels: Sequence[int], candidates: Sequence[str]) -> None:
        names = {number: str(number) for number in levels}
        self._level_queries = {
            number: metrics.counter("level_queries_total", "Queries that a level answered", level=name)
            for number, name in names.items()
        }
        self._answered = {
            number: metrics.counter("answered_queries_total", "Queries by the level that answered last", level=name)
            for number, name in names.items()
        }
        self._seconds = {
            number: metrics.histogram("level_seconds", "Time that a level takes for a call", level=name)
            for number, name in names.items()
        }
        self._waited = {
            number: metrics.histogram("level_queue_seconds", "Time that calls to a level wait in its queue", level=name)
            for number, name in names.items()
        }
        self._confidence = {
            number: metrics.histogram(
                "confidence", "Calibrated confidence of a level's answers", buckets=_CONFIDENCE_BUCKETS, level=name
            )
            for number, name in names.items()
        }
        self._failed = {
            number: metrics.counter("level_failures_total", "Calls that a level failed to answer", level=name)
            for number, name in names.items()
        }
        self._lost = {
            number: metrics.gauge("lost_calls", "Calls to a level that were abandoned and have not ended", level=name)
            for number, name in names.items()
        }
        self._early = metrics.counter("early_returned_queries_total", "Queries answered before their last level")
        self._early_routed = metrics.counter(
            "early_routed_queries_total", "Queries that the early router sent to the last level without the first"
        )
        causes: tuple[DegradationCause, ...] = ("failure", "deadline")
        self._degraded = {
            cause: metrics.counter("degraded_queries_total", "Queries answered without a needed level", cause=cause)
            for cause in causes
        }
        self._seen = metrics.counter("seen_words_total", "Words of queries that pruning examined")
        self._pruned = metrics.counter("pruned_words_total", "Words that pruning removed")
        self._active = {
            name: metrics.gauge("active_candidate", "1 for the candidate that serves now", candidate=name)
            for name in candidates
        }

    def level_answered(self, number: int, waited_s: float, took_s: float, confidences: Sequence[float]) -> None:
        """Record that a level answered a call.

        Args:
            number: Number of the level.
            waited_s: Time that the call waited in the queue, seconds.
            took_s: Time that the level took, seconds.
            confidences: Calibrated confidence of each query.
        """
        self._waited[number].observe(waited_s)
        self._seconds[number].observe(took_s)
        self._level_queries[number].inc(len(confidences))
        for confidence in confidences:
            self._confidence[number].observe(confidence)

    def level_failed(self, number: int) -> None:
        """Record that a level failed to answer a call."""
        self._failed[number].inc()

    def lost_calls(self, number: int, calls: int) -> None:
        """Set how many calls to a level were abandoned and have not ended."""
        self._lost[number].set(calls)

    def pruned(self, seen: int, removed: int) -> None:
        """Record how many words pruning examined and removed."""
        self._seen.inc(seen)
        self._pruned.inc(removed)

    def early_routed(self, count: int) -> None:
        """Record that the early router sent queries to the last level."""
        self._early_routed.inc(count)

    def answered(self, number: int, *, early: bool) -> None:
        """Record that a query was answered, by this level last; `early` if a further one could have run."""
        self._answered[number].inc()
        if early:
            self._early.inc()

    def degraded(self, cause: DegradationCause, queries: int) -> None:
        """Record queries that are answered without a level that they were re-routed to."""
        self._degraded[cause].inc(queries)

    def serves(self, candidate: str) -> None:
        """Set the candidate that serves now."""
        for name, gauge in self._active.items():
            gauge.set(1.0 if name == candidate else 0.0)
