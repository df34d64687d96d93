"""The controller's own Prometheus metrics, `tidal_controller_*`."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from tidal.controller.decisions import Decision, ModelProfile
from tidal.errors import InvalidArgument, Unavailable

_CHANGE_BUCKETS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Meters:
    """All families, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        model, runtime = ["model"], ["model", "runtime"]

        def named(name: str) -> str:
            return f"tidal_controller_{name}"

        of = self.registry
        self.server_up = Gauge(named("server_up"), "1 while the server answers", registry=of)
        self.decisions = Counter(named("decisions"), "Decisions by what they were", [*model, "action"], registry=of)
        self.replacements = Counter(named("replacements"), "Instances changed, added or released", model, registry=of)
        self.failed = Counter(named("failed_changes"), "Changes that could not be completed", model, registry=of)
        self.change = Histogram(
            named("change_seconds"), "Time to carry out a change", model, buckets=_CHANGE_BUCKETS, registry=of
        )
        self.instances = Gauge(named("instances"), "Instances wanted, by max_length", runtime, registry=of)
        self.demand = Gauge(named("demand_queries"), "Queries in one SLO period by max_length", runtime, registry=of)
        self.observed = Gauge(named("observed_latency_seconds"), "Mean latency in the last period", model, registry=of)
        self.predicted = Gauge(
            named("predicted_latency_seconds"), "Predicted mean latency of the allocation in force", model, registry=of
        )
        self.short = Gauge(named("instances_short"), "Instances lacking for the SLO", model, registry=of)

    def decided(self, model: str, profile: ModelProfile, decision: Decision) -> None:
        """A decision, to be carried out or not."""
        self.decisions.labels(model, decision.action).inc()
        self.in_force(model, profile, decision.before)
        if decision.observed.mean_latency_s is not None:
            self.observed.labels(model).set(decision.observed.mean_latency_s)
        for length, queries in zip(profile.lengths, decision.demand, strict=False):
            self.demand.labels(model, str(length)).set(queries)
        if decision.mean_before_s is not None:
            self.predicted.labels(model).set(decision.mean_before_s)
            self.short.labels(model).set(decision.gpus_short)

    def in_force(self, model: str, profile: ModelProfile, instances: tuple[int, ...]) -> None:
        """The allocation that holds from now on."""
        for length, count in zip(profile.lengths, instances, strict=True):
            self.instances.labels(model, str(length)).set(count)

    @contextmanager
    def published(self, host: str, port: int | None) -> Iterator[int | None]:
        """Serve them on `/metrics` until the block ends; gives the port, which is a free one for 0.

        Raises:
            Unavailable: the port is taken.
            InvalidArgument: the address cannot be listened on.
        """
        if port is None:
            yield None
            return
        try:
            server, thread = start_http_server(port, addr=host, registry=self.registry)
        except PermissionError:
            raise InvalidArgument(
                f"--metrics-port {port} may not be used by this user: choose one above 1023"
            ) from None
        except OSError as error:
            reason = "is taken: choose another, or 0 for a free one"
            if error.errno != errno.EADDRINUSE:
                reason = f"cannot be used on --host {host}: {error.strerror or error}"
            raise Unavailable(f"--metrics-port {port} {reason}") from None
        try:
            yield int(server.server_port)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
