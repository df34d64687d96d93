"""What the `otas` backend counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tidal.metrics import Metrics
from tidal.otas.policies import Batch, Query
from tidal.tasks.metrics import IntakeMetrics

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
_TASK_BUCKETS = (1, 2, 4, 8, 16, 32)
_DECISION_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)

#: What became of a query that was admitted: its answer went out in time or too late (types 1 and 2, and 3, of §V), it
#: was given up before it ran (type 4), it was withdrawn, or the engine failed at it.
Outcome = Literal["in_time", "late", "evicted", "cancelled", "failed"]


class OtasMetrics(IntakeMetrics):
    """The families `tidal_otas_*` of queries and batches."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(metrics)
        self._all = metrics
        self.waiting = metrics.gauge("waiting_queries", "Queries in the queue")
        self.decision = metrics.histogram(
            "decision_seconds", "Time that the policy took to decide what runs next", buckets=_DECISION_BUCKETS
        )
        self._queue = metrics.histogram("queue_seconds", "Time from arrival to execution")
        self._execute = metrics.histogram("execute_seconds", "Engine time of a batch")
        self._predicted = metrics.counter("predicted_seconds_total", "Engine time that batches were predicted to take")
        self._batch = metrics.histogram("batch_size_queries", "Queries run together", buckets=_BATCH_BUCKETS)
        self._tasks = metrics.histogram("batch_distinct_tasks", "Different tasks in a batch", buckets=_TASK_BUCKETS)

    def ran(self, batch: Batch, rows: Sequence[Query], started: float, execute_s: float) -> None:
        """A batch ran: as planned, the queries of it that did run, when it started, and seconds of the engine."""
        for row in rows:
            self._queue.observe(started - row.arrival)
        self._execute.observe(execute_s)
        self._predicted.inc(batch.seconds)
        self._batch.observe(len(rows))
        self._tasks.observe(len({row.task for row in rows}))
        gamma = str(batch.gamma)
        self._all.counter("batches_total", "Batches run, by their γ", gamma=gamma).inc()
        self._all.counter("executed_queries_total", "Queries run, by their batch's γ", gamma=gamma).inc(len(rows))

    def count_outcome(self, outcome: Outcome, queries: int, utility: float) -> None:
        """Count queries that ended.

        Args:
            outcome: How they ended.
            queries: Number of queries.
            utility: Utility of each of them.
        """
        self._all.counter("outcomes_total", "Queries by what became of them", outcome=outcome).inc(queries)
        self._all.counter("utility_total", "Utility of queries by what became of them", outcome=outcome).inc(
            utility * queries
        )
