"""What the `pets` backend counts."""

from __future__ import annotations

from collections.abc import Sequence

from tidal.metrics import Metrics
from tidal.pets.policies import Query
from tidal.pets.tasks.lease import CacheState

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
_TASK_BUCKETS = (1, 3, 7, 15, 31, 63, 127)
_KIND_BUCKETS = (1, 2, 3, 4, 5)


class PetsMetrics:
    """The families `tidal_pets_*` of queries and batches."""

    def __init__(self, metrics: Metrics, lengths: Sequence[int]) -> None:
        self._all = metrics
        self.waiting = metrics.gauge("waiting_queries", "Queries in the queue")
        self.loading = metrics.gauge("waiting_for_task_queries", "Queries that wait for their task to load")
        self._length = metrics.histogram(
            "query_length_tokens", "Query lengths, special tokens included", buckets=lengths
        )
        self._queue = metrics.histogram("queue_seconds", "Time from arrival to execution")
        self._execute = metrics.histogram("execute_seconds", "Engine time of a batch")
        self._batch = metrics.histogram("batch_size_queries", "Queries run together", buckets=_BATCH_BUCKETS)
        self._tasks = metrics.histogram("batch_distinct_tasks", "Different tasks in a batch", buckets=_TASK_BUCKETS)
        self._kinds = metrics.histogram("batch_distinct_kinds", "Different kinds in a batch", buckets=_KIND_BUCKETS)
        self.merged = metrics.counter("merged_queries_total", "Queries that ran on a merged copy of the base")
        self._tokens = metrics.counter("tokens_total", "Tokens of executed queries")
        self._padded = metrics.counter("padded_tokens_total", "Tokens of executed batches, padding included")

    def length(self, tokens: int) -> None:
        """A query arrived."""
        self._length.observe(tokens)

    def ran(self, queries: Sequence[Query], started: float, execute_s: float) -> None:
        """A batch ran: its queries, the moment when it started, and seconds of the engine."""
        longest, kinds = 0, dict[str, int]()
        for query in queries:
            self._queue.observe(started - query.arrival)
            longest = max(longest, query.length)
            kinds[query.kind] = kinds.get(query.kind, 0) + 1
        self._execute.observe(execute_s)
        self._batch.observe(len(queries))
        self._tasks.observe(len({query.task for query in queries}))
        self._kinds.observe(len(kinds))
        for kind, count in kinds.items():
            self._all.counter("executed_queries_total", "Queries run, by their task's kind", kind=kind).inc(count)
        self._tokens.inc(sum(query.length for query in queries))
        self._padded.inc(longest * len(queries))

    def refused(self, reason: str, queries: int) -> None:
        """Queries were refused.

        Args:
            reason: `task` (none named, unknown, or refused itself), `input`, `deadline`.
            queries: how many.
        """
        self._all.counter("refused_queries_total", "Queries refused, by reason", reason=reason).inc(queries)


class TaskMetrics:
    """The families `tidal_pets_task*`: what is in memory. It outlives services, as the tasks do."""

    def __init__(self, metrics: Metrics) -> None:
        self._known = metrics.gauge("tasks", "Tasks in the model's folder")
        self._resident = metrics.gauge("tasks_resident", "Tasks in memory")
        self._loading = metrics.gauge("tasks_loading", "Tasks that are being loaded")
        self._bytes = metrics.gauge("task_bytes", "Memory that the terms of tasks take")
        self._budget = metrics.gauge("task_budget_bytes", "Memory that the terms of tasks may take")
        self._loads = metrics.counter("task_loads_total", "Tasks loaded")
        self._evictions = metrics.counter("task_evictions_total", "Tasks that left for others")
        self._failures = metrics.counter("task_load_failures_total", "Tasks that could not be loaded")
        self._shown = (0, 0, 0)

    def show(self, state: CacheState, budget: int) -> None:
        """Take over what is in memory; from one thread at a time."""
        self._known.set(state.known)
        self._resident.set(state.resident)
        self._loading.set(state.loading)
        self._bytes.set(state.bytes)
        self._budget.set(budget)
        now = (state.loads, state.evictions, state.failures)
        counters = (self._loads, self._evictions, self._failures)
        for counter, before, after in zip(counters, self._shown, now, strict=True):
            counter.inc(after - before)
        self._shown = now
