"""Metrics of the `pets` backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tidal.metrics import Metrics
from tidal.pets.policies import PetsQuery
from tidal.tasks.metrics import IntakeMetrics

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
_TASK_BUCKETS = (1, 3, 7, 15, 31, 63, 127)
_KIND_BUCKETS = (1, 2, 3, 4, 5)


class PetsMetrics(IntakeMetrics):
    """The metric families `tidal_pets_*` of queries and batches.

    Args:
        metrics: Metrics of the model.
        lengths: Buckets of the queries' lengths in tokens.
        packed: Whether batches have no padding.
    """

    def __init__(self, metrics: Metrics, lengths: Sequence[int], *, packed: bool) -> None:
        super().__init__(metrics)
        self._all, self._packed = metrics, packed
        self.waiting = metrics.gauge("waiting_queries", "Queries in the queue")
        self._length = metrics.histogram(
            "query_length_tokens", "Query lengths, special tokens included", buckets=lengths
        )
        self.busy_lanes = metrics.gauge("busy_lanes", "Engine contexts that run a batch")
        self._narrow = {
            narrow: metrics.counter("lane_batches_total", "Batches by threads of their context", mode=mode)
            for narrow, mode in ((False, "wide"), (True, "narrow"))
        }
        self._queue = metrics.histogram("queue_seconds", "Time from arrival to execution")
        self._execute = metrics.histogram("execute_seconds", "Engine time of a batch")
        self._batch = metrics.histogram("batch_size_queries", "Queries run together", buckets=_BATCH_BUCKETS)
        self._tasks = metrics.histogram("batch_distinct_tasks", "Different tasks in a batch", buckets=_TASK_BUCKETS)
        self._kinds = metrics.histogram("batch_distinct_kinds", "Different kinds in a batch", buckets=_KIND_BUCKETS)
        self.merged = metrics.counter("merged_queries_total", "Queries that ran on a merged copy of the base")
        self._tokens = metrics.counter("tokens_total", "Tokens of executed queries")
        self._padded = metrics.counter("padded_tokens_total", "Tokens of executed batches, padding included")

    def arrived(self, lengths: Sequence[int]) -> None:
        """Count arrived queries by their lengths in tokens."""
        self._length.observe_all(lengths)

    def ran(self, queries: Sequence[PetsQuery], started: float, execute_s: float, *, narrow: bool) -> None:
        """Count an executed batch.

        Args:
            queries: Queries of the batch.
            started: Time when the batch started, on the clock of the queries' arrivals, in seconds.
            execute_s: Engine time of the batch in seconds.
            narrow: Whether it ran on a single thread.
        """
        self._narrow[narrow].inc()
        lengths = [query.length for query in queries]
        kinds = Counter(query.kind for query in queries)
        self._queue.observe_all([started - query.arrival for query in queries])
        self._execute.observe(execute_s)
        self._batch.observe(len(queries))
        self._tasks.observe(len({query.task for query in queries}))
        self._kinds.observe(len(kinds))
        for kind, count in kinds.items():
            self._all.counter("executed_queries_total", "Queries run, by their task's kind", kind=kind).inc(count)
        self._tokens.inc(sum(lengths))
        self._padded.inc(sum(lengths) if self._packed else max(lengths) * len(queries))
