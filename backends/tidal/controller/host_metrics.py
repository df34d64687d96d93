"""Prometheus metrics of `tidal controller`, `tidal_controller_*`."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tidal.controller.decisions import Decision

_CHANGE_BUCKETS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class HostMetrics:
    """The metric families, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        model, runtime = ["model"], ["model", "runtime"]

        def named(name: str) -> str:
            return f"tidal_controller_{name}"

        of = self.registry
        self.server_up = Gauge(named("server_up"), "1 while the server answers, else 0", registry=of)
        self.decisions = Counter(named("decisions"), "Decisions by action", [*model, "action"], registry=of)
        self.replacements = Counter(named("replacements"), "Instances changed, added or released", model, registry=of)
        self.failed = Counter(named("failed_changes"), "Changes that could not be completed", model, registry=of)
        self.change = Histogram(
            named("change_seconds"), "Time to apply a change", model, buckets=_CHANGE_BUCKETS, registry=of
        )
        self.instances = Gauge(named("instances"), "Instances to run, by max_length", runtime, registry=of)
        self.demand = Gauge(named("demand_queries"), "Queries in one SLO period by max_length", runtime, registry=of)
        self.observed = Gauge(named("observed_latency_seconds"), "Mean latency in the last period", model, registry=of)
        self.predicted = Gauge(
            named("predicted_latency_seconds"), "Predicted mean latency of the current allocation", model, registry=of
        )
        self.short = Gauge(named("instances_short"), "Additional instances that the SLO requires", model, registry=of)

    def decided(self, model: str, decision: Decision) -> None:
        """Record a decision, applied or not."""
        plan = decision.plan
        self.decisions.labels(model, decision.action).inc()
        if decision.observed.mean_latency_s is not None:
            self.observed.labels(model).set(decision.observed.mean_latency_s)
        for length, queries in zip(decision.profile.lengths, plan.demand, strict=False):
            self.demand.labels(model, str(length)).set(queries)
        if plan.mean_before_s is not None:
            self.predicted.labels(model).set(plan.mean_before_s)
            self.short.labels(model).set(plan.instances_short)

    def changed(self, model: str, decision: Decision, seconds: float) -> None:
        """Record a change that was completed after some seconds."""
        self.change.labels(model).observe(seconds)
        if decision.action == "allocate" and decision.plan.mean_best_s is not None:
            self.predicted.labels(model).set(decision.plan.mean_best_s)

    def set_instances(self, model: str, instances: Mapping[int, int]) -> None:
        """Record the current allocation, by max_length in tokens."""
        for length, count in instances.items():
            self.instances.labels(model, str(length)).set(count)
