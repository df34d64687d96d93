"""Panels as the JSON that Grafana reads."""

from __future__ import annotations

from typing import Any

from deploy.grafana.queries import Panel

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def drawn(panel: Panel) -> dict[str, Any]:
    """A panel without its id and position."""
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "targets": [_target(panel, number) for number in range(len(panel.queries))],
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        **_OPTIONS[panel.kind],
    }


def _target(panel: Panel, number: int) -> dict[str, Any]:
    query, legend = panel.queries[number]
    target = {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": query, "legendFormat": legend}
    return {**target, "format": "table", "instant": True} if panel.kind == "table" else target


def _field(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    steps += [{"color": color, "value": value} for color, value in zip(("yellow", "red"), panel.limits, strict=False)]
    field: dict[str, Any] = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        field["custom"] = {
            "drawStyle": "line",
            "fillOpacity": 25 if panel.stacked else 5,
            "stacking": {"mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "dashed" if panel.limits else "off"},
        }
    return field


_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    },
    "stat": {
        "options": {
            "colorMode": "value",
            "graphMode": "area",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
    },
    "table": {
        "options": {"showHeader": True},
        "transformations": [
            {
                "id": "organize",
                "options": {
                    "excludeByName": {"Time": True},
                    "renameByName": {"model": "Model", "version": "Version", "Value": "Servers"},
                },
            }
        ],
    },
}
