"""Read metrics of a service in this process, or those that a server publishes."""

from __future__ import annotations

from typing import ClassVar

from testing.servers import RunningServer
from testing.waiting import until
from tidal.metrics import Metrics


def published(page: str, family: str, **labels: str) -> float:
    """Return the sum of a family's series with these labels on a page of /metrics."""
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    return sum(
        float(line.split()[-1])
        for line in page.splitlines()
        if line.startswith(f"{family}{{") and all(each in line for each in wanted)
    )


class Counting:
    """Mixin for a service of `system` in this process."""

    system: ClassVar[str]
    metrics: Metrics

    def metric(self, family: str, **labels: str) -> float:
        """Return the sum of a family's series with these labels."""
        return sum(
            sample.value
            for sample in self.metrics.samples()
            if sample.family == f"tidal_{self.system}_{family}" and labels.items() <= dict(sample.labels).items()
        )

    def counts(self, family: str, value: float, **labels: str) -> bool:
        """Wait until a metric has a value, since it is counted after the answer; returns whether it has."""
        return until(lambda: self.metric(family, **labels) == value)


class Publishing:
    """Mixin for a server with models of `system`."""

    system: ClassVar[str]
    server: RunningServer

    def metric(self, family: str, model: str, **labels: str) -> float:
        """Return the sum of a model's published series of a family with these labels."""
        return published(self.server.metrics_text(), f"tidal_{self.system}_{family}", model=model, **labels)
