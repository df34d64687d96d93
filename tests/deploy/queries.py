"""Queries of the dashboard, the alerts and the autoscaling rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from deploy.grafana import dashboard
from tests.deploy.project import documents

_TEMPLATED = re.compile(r"\$__rate_interval|\$model|\$instance")


def rows() -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The rows with their panels, which a collapsed one has inside."""
    found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for panel in json.loads(dashboard.TARGET.read_text())["panels"]:
        if panel["type"] == "row":
            found.append((panel, list(panel["panels"])))
        else:
            found[-1][1].append(panel)
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for _, inside in rows() for panel in inside]


def queries() -> Iterator[tuple[str, str]]:
    """Where a query stands, and the query."""
    for panel in panels():
        for target in panel["targets"]:
            yield f"dashboard: {panel['title']}", plain(target["expr"])
    for group in documents("deploy/prometheus/alerts.yml")[0]["groups"]:
        for rule in group["rules"]:
            yield f"alert: {rule['alert']}", rule["expr"]
    _, rules = documents("deploy/kubernetes/monitoring.yaml")
    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            yield f"record: {rule['record']}", rule["expr"]


def plain(query: str) -> str:
    """A query as Grafana sends it."""
    return _TEMPLATED.sub(lambda found: {"$__rate_interval": "1m"}.get(found.group(), ".*"), query)
