"""Metrics of a model's tasks and of queries that wait for them."""

from __future__ import annotations

from tidal.metrics import Metrics
from tidal.tasks.lease import CacheState


class TaskMetrics:
    """Families `tidal_<system>_task*` on the tasks in memory, which outlive a restart of the service.

    Args:
        metrics: Metrics of the model.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._known = metrics.gauge("tasks", "Tasks in the model's folder")
        self._resident = metrics.gauge("tasks_resident", "Tasks in memory")
        self._loading = metrics.gauge("tasks_loading", "Tasks being loaded")
        self._bytes = metrics.gauge("task_bytes", "Memory used by tasks, in bytes")
        self._budget = metrics.gauge("task_budget_bytes", "Memory limit for tasks, in bytes")
        self._loads = metrics.counter("task_loads_total", "Tasks loaded")
        self._evictions = metrics.counter("task_evictions_total", "Tasks evicted from memory")
        self._failures = metrics.counter("task_load_failures_total", "Tasks that failed to load")
        self._counted = (0, 0, 0)

    def show(self, state: CacheState, budget: int) -> None:
        """Update the families; called by one thread at a time.

        Args:
            state: State of the cache.
            budget: Memory limit of all tasks together, in bytes.
        """
        self._known.set(state.known)
        self._resident.set(state.resident)
        self._loading.set(state.loading)
        self._bytes.set(state.bytes)
        self._budget.set(budget)
        now = (state.loads, state.evictions, state.failures)
        counters = (self._loads, self._evictions, self._failures)
        for counter, before, after in zip(counters, self._counted, now, strict=True):
            counter.inc(after - before)
        self._counted = now


class IntakeMetrics:
    """Families on queries before they are queued.

    Args:
        metrics: Metrics of the model.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.loading = metrics.gauge("waiting_for_task_queries", "Queries waiting for their task to load")

    def refused(self, reason: str, queries: int) -> None:
        """Count refused queries.

        Args:
            reason: `task` (missing, unknown or refused), `input` or `deadline`.
            queries: Number of queries.
        """
        self._metrics.counter("refused_queries_total", "Queries refused, by reason", reason=reason).inc(queries)
