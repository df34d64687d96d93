"""Metrics of the `otas` backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tidal.metrics import Metrics
from tidal.otas.policies import Batch, Query
from tidal.tasks.metrics import IntakeMetrics

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
_TASK_BUCKETS = (1, 2, 4, 8, 16, 32)
_DECISION_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)

#: Outcome of an admitted query: answered in time (types 1 and 2 of OTAS §V) or late (type 3), evicted before it ran
#: (type 4), cancelled, or failed in the engine.
Outcome = Literal["in_time", "late", "evicted", "cancelled", "failed"]


class OtasMetrics(IntakeMetrics):
    """Families `tidal_otas_*` on queries and batches.

    Args:
        metrics: Metrics of the model.
    """

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(metrics)
        self._all = metrics
        self.waiting = metrics.gauge("waiting_queries", "Queries in the queue")
        self.decision = metrics.histogram(
            "decision_seconds", "Time of a decision of the policy", buckets=_DECISION_BUCKETS
        )
        self._queue = metrics.histogram("queue_seconds", "Time from arrival to execution")
        self._execute = metrics.histogram("execute_seconds", "Engine time of a batch")
        self._predicted = metrics.counter("predicted_seconds_total", "Predicted engine time of batches")
        self._batch = metrics.histogram("batch_size_queries", "Queries run together", buckets=_BATCH_BUCKETS)
        self._tasks = metrics.histogram("batch_distinct_tasks", "Different tasks in a batch", buckets=_TASK_BUCKETS)

    def ran(self, batch: Batch, rows: Sequence[Query], started: float, execute_s: float) -> None:
        """Record a batch that ran.

        Args:
            batch: The batch as planned.
            rows: Queries of the batch that ran.
            started: Start of the batch, by `time.monotonic()`, in seconds.
            execute_s: Engine time of the batch, in seconds.
        """
        self._queue.observe_all([started - row.arrival for row in rows])
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
            outcome: Outcome of the queries.
            queries: Number of queries.
            utility: Utility of each of them.
        """
        self._all.counter("outcomes_total", "Queries, by outcome", outcome=outcome).inc(queries)
        self._all.counter("utility_total", "Utility of queries, by outcome", outcome=outcome).inc(utility * queries)
