"""What is counted of the tasks beside a model."""

from __future__ import annotations

from tidal.metrics import Metrics
from tidal.tasks.lease import CacheState


class TaskMetrics:
    """The families `tidal_<system>_task*`: what is in memory. It outlives services, as the tasks do."""

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


class IntakeMetrics:
    """Families of queries on their way to the queue."""

    def __init__(self, metrics: Metrics) -> None:
        self._refusals = metrics
        self.loading = metrics.gauge("waiting_for_task_queries", "Queries that wait for their task to load")

    def refused(self, reason: str, queries: int) -> None:
        """Queries were refused.

        Args:
            reason: `task` (none named, unknown, or refused itself), `input`, `deadline`.
            queries: how many.
        """
        self._refusals.counter("refused_queries_total", "Queries refused, by reason", reason=reason).inc(queries)
