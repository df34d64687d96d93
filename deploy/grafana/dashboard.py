"""Lays the panels out as the JSON that Grafana reads: a row for each system, for Triton and for the controller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.grafana.beside import controller, triton
from deploy.grafana.queries import Panel
from deploy.grafana.systems import arlo, flover, otas, pets, tabi

TARGET = Path(__file__).parent / "dashboards" / "tidal.json"
_WIDTH, _HEIGHT, _IN_A_LINE = 24, 8, 4
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

ROWS = (
    ("Triton", triton),
    ("Arlo: queries by length", arlo),
    ("Tabi: cascades", tabi),
    ("PetS: tasks on one encoder", pets),
    ("OTAS: vision transformers", otas),
    ("Flover: generations", flover),
    ("Controller", controller),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    return {
        "uid": "tidal",
        "title": "Tidal",
        "tags": ["tidal"],
        "timezone": "browser",
        "editable": True,
        "schemaVersion": 39,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_DATASOURCE, _MODELS]},
        "annotations": {"list": []},
        "panels": list(_laid_out()),
    }


_DATASOURCE = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}}
_MODELS = {
    "name": "model",
    "label": "Model",
    "type": "query",
    "datasource": _SOURCE,
    "query": {"query": "label_values(nv_inference_request_success, model)", "refId": "models"},
    "refresh": 2,
    "multi": True,
    "includeAll": True,
    "allValue": ".*",
    "current": {"text": "All", "value": "$__all"},
}


def _laid_out() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for title, panels in ROWS:
        number += 1
        row = {"id": number, "type": "row", "title": title, "collapsed": False, "panels": []}
        yield {**row, "gridPos": {"x": 0, "y": top, "w": _WIDTH, "h": 1}}
        top += 1
        drawn = panels()
        for first in range(0, len(drawn), _IN_A_LINE):
            width = _WIDTH // _IN_A_LINE
            for column, panel in enumerate(drawn[first : first + _IN_A_LINE]):
                number += 1
                place = {"x": column * width, "y": top, "w": width, "h": _HEIGHT}
                yield {"id": number, "gridPos": place, **_drawn(panel)}
            top += _HEIGHT


def _drawn(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
        for number, (query, legend) in enumerate(panel.queries)
    ]
    custom = {
        "drawStyle": "line",
        "fillOpacity": 25 if panel.stacked else 5,
        "stacking": {"mode": "normal" if panel.stacked else "none"},
    }
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
