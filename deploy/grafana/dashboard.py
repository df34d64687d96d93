"""The layout: an open row with an overview, then a collapsed row for each other part."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deploy.grafana.beside import controller, triton
from deploy.grafana.clusters import cluster
from deploy.grafana.drawing import SOURCE, drawn
from deploy.grafana.generations import flover
from deploy.grafana.overview import overview
from deploy.grafana.queries import Panel
from deploy.grafana.systems import arlo, otas, pets, tabi

TARGET = Path(__file__).parent / "dashboards" / "tidal.json"
_WIDTH, _HEIGHT, _IN_A_LINE = 24, 8, 4
_TILE_HEIGHT, _TILES_IN_A_LINE = 6, 6

ROWS = (
    ("Triton", triton),
    ("Arlo: queries by length", arlo),
    ("Tabi: cascades", tabi),
    ("PetS: tasks on one encoder", pets),
    ("OTAS: vision transformers", otas),
    ("Flover: generations", flover),
    ("Controller: instances of partitioned models", controller),
    ("Cluster: nodes", cluster),
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
        "version": 2,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                _variable("instance", "Instance", "nv_inference_request_success"),
                _variable("model", "Model", 'nv_inference_request_success{instance=~"$instance"}'),
            ]
        },
        "annotations": {"list": []},
        "panels": list(_laid_out()),
    }


def _variable(label: str, title: str, series: str) -> dict[str, Any]:
    """A selector of the values of a label, all of them by default."""
    return {
        "name": label,
        "label": title,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({series}, {label})", "refId": f"{label}s"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _laid_out() -> Iterator[dict[str, Any]]:
    panels = overview()
    yield _row(1, "Overview", 0, collapsed=False)
    tiles = [panel for panel in panels if panel.kind != "timeseries"]
    charts = [panel for panel in panels if panel.kind == "timeseries"]
    yield from _placed(tiles, 2, 1, _TILES_IN_A_LINE, _TILE_HEIGHT)
    yield from _placed(charts, 2 + len(tiles), 1 + _TILE_HEIGHT, _IN_A_LINE, _HEIGHT)
    number, top = 2 + len(panels), 1 + _TILE_HEIGHT + _HEIGHT
    for title, make in ROWS:
        panels = make()
        # A collapsed row contains its panels, at their positions in the open row.
        row = _row(number, title, top, collapsed=True)
        yield {**row, "panels": list(_placed(panels, number + 1, top + 1, _IN_A_LINE, _HEIGHT))}
        number, top = number + 1 + len(panels), top + 1


def _row(number: int, title: str, top: int, *, collapsed: bool) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": collapsed, "panels": [], "gridPos": place}


def _placed(panels: Sequence[Panel], number: int, top: int, in_a_line: int, height: int) -> Iterator[dict[str, Any]]:
    width = _WIDTH // in_a_line
    for index, panel in enumerate(panels):
        line, column = divmod(index, in_a_line)
        place = {"x": column * width, "y": top + line * height, "w": width, "h": height}
        yield {"id": number + index, "gridPos": place, **drawn(panel)}


def text() -> str:
    """Content of the file."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
