"""Prometheus metrics of a node's agent, `tidal_cluster_node_*`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tidal.controller.metrics import RESULTS, named
from tidal.controller.reports import NodeReport


class NodeMetrics:
    """The metric families of an agent, in a separate registry.

    Args:
        report: Returns the state of the node; called at each reading of the metrics, by any thread.
    """

    def __init__(self, report: Callable[[], NodeReport]) -> None:
        self.registry = of = CollectorRegistry()
        # The first, because it creates series of the counter.
        of.register(_ReportCollector(report, self._add_model))

        def timestamp(name: str, help: str) -> Gauge:
            # Before the first event it is the start: an agent that nobody reads must not look as if it had none.
            gauge = Gauge(named(f"node_{name}_timestamp_seconds"), help, registry=of)
            gauge.set(start)
            return gauge

        start = time.time()
        timestamp("start", "Time of the agent's last start")
        self._read = timestamp("read", "Time of the controller's last reading; before the first, of the agent's start")
        self._table = timestamp(
            "table", "Time when the fronts last had the present tables of nodes; before that, of the agent's start"
        )
        self._changes = Counter(
            named("node_changes"), "Changes of the node's instances, by result", ["model", "result"], registry=of
        )

    def controller_read(self) -> None:
        """Record that the controller reads the agent."""
        self._read.set_to_current_time()

    def tables_written(self) -> None:
        """Record that the fronts have the controller's tables."""
        self._table.set_to_current_time()

    @contextmanager
    def change(self, model: str) -> Iterator[None]:
        """Count a change of a model's instances, which the block carries out."""
        try:
            yield
        except Exception:
            self._changes.labels(model, "failed").inc()
            raise
        self._changes.labels(model, "done").inc()

    def _add_model(self, model: str) -> None:
        for result in RESULTS:
            self._changes.labels(model, result)


class _ReportCollector(Collector):
    """Families that follow from the present report of the node."""

    def __init__(self, report: Callable[[], NodeReport], add_model: Callable[[str], None]) -> None:
        self._report, self._add_model = report, add_model

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the families."""
        report = self._report()
        runtime = ("model", "runtime")
        up = GaugeMetricFamily(named("node_server_up"), "1 while the node's server serves, else 0")
        up.add_metric([], float(report.state == "serves"))
        draining = GaugeMetricFamily(named("node_draining"), "1 while the node is drained, else 0")
        draining.add_metric([], float(report.draining))
        devices = GaugeMetricFamily(
            named("node_devices"), "Instances that the node's devices hold beside its other models", labels=["model"]
        )
        instances = GaugeMetricFamily(
            named("node_instances"), "Instances of the node that queries run on, by max_length", labels=runtime
        )
        queries = CounterMetricFamily(
            named("node_queries"), "Queries that arrived at the node since its server started", labels=runtime
        )
        busy = CounterMetricFamily(
            named("node_busy_seconds"), "Time that the node's instances have computed, by max_length", labels=runtime
        )
        for its in report.models:
            self._add_model(its.model)
            devices.add_metric([its.model], its.devices)
            columns = zip(its.profile.lengths, its.usable, its.counts.queries, its.counts.busy_s, strict=True)
            for length, count, arrived, seconds in columns:
                labels = [its.model, str(length)]
                instances.add_metric(labels, count)
                queries.add_metric(labels, arrived)
                busy.add_metric(labels, seconds)
        yield from (up, draining, devices, instances, queries, busy)
