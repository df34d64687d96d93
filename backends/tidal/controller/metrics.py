"""The controller's own Prometheus metrics, `tidal_controller_*`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tidal.controller.decisions import AllocationDecision, ModelProfile

_CHANGE_BUCKETS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class ControllerMetrics:
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

    def decided(self, model: str, profile: ModelProfile, decision: AllocationDecision) -> None:
        """Record a decision, applied or not."""
        self.decisions.labels(model, decision.action).inc()
        self.set_instances(model, profile, decision.before)
        if decision.observed.mean_latency_s is not None:
            self.observed.labels(model).set(decision.observed.mean_latency_s)
        for length, queries in zip(profile.lengths, decision.demand, strict=False):
            self.demand.labels(model, str(length)).set(queries)
        if decision.mean_before_s is not None:
            self.predicted.labels(model).set(decision.mean_before_s)
            self.short.labels(model).set(decision.gpus_short)

    def set_instances(self, model: str, profile: ModelProfile, instances: tuple[int, ...]) -> None:
        """Record the current allocation."""
        for length, count in zip(profile.lengths, instances, strict=True):
            self.instances.labels(model, str(length)).set(count)
