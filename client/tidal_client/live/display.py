"""The live view of models as a table for a terminal."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidal_client.live.charts import CHARTS

#: Charts that are columns of the table.
_COLUMNS: Final = frozenset({"throughput", "latency", "queue"})
_STATES: Final = {"ready": "green", "restarting": "yellow", "not ready": "red"}


def render(frame: dict[str, Any]) -> RenderableType:
    """Return the table of a frame, with a line for each model that has something to show."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("model", overflow="fold")
    for name in ("state", "version", "engine"):
        table.add_column(name, no_wrap=True)
    for name in ("requests/s", "p50", "p99", "queue", "restarts"):
        table.add_column(name, justify="right", no_wrap=True)
    for model in frame["models"]:
        figures = model["summary"]
        state = str(model.get("state", "–"))
        table.add_row(
            Text(model["name"], style="bold"),
            Text(state, style=_STATES.get(state, "dim")),
            ", ".join(model["versions"]) or "–",
            " ".join(filter(None, (model.get("engine"), model.get("precision")))) or "–",
            number(figures.get("per_second")),
            milliseconds(figures.get("p50_ms")),
            milliseconds(figures.get("p99_ms")),
            number(figures.get("queue")),
            str(model.get("restarts", "–")),
        )
    lines = [
        Text.assemble((model["name"], "bold"), "  ", text) for model in frame["models"] if (text := details(model))
    ]
    problems = [Text(f"{each['name']}: {each['reason']}", style="red") for each in frame["servers"] if each["reason"]]
    return Group(table, *([Text("")] if lines else []), *lines, *problems)


def details(model: dict[str, Any]) -> str:
    """Return the figures of a model's own charts on one line; without those that are all 0."""
    parts = []
    for chart in CHARTS[model["system"]]:
        values = model["values"].get(chart.name, {})
        if chart.name in _COLUMNS or not any(values.values()):
            continue
        shown = ", ".join(f"{'' if name == 'all' else f'{name} '}{number(value)}" for name, value in values.items())
        title = chart.title.lower()
        parts.append(f"{title} {shown}" if chart.unit in title else f"{title} {shown} {chart.unit}")
    return " · ".join(parts)


def number(value: float | None) -> str:
    """Return a number with three significant digits; a dash for none."""
    if value is None:
        return "–"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def milliseconds(value: float | None) -> str:
    """Return a time in ms with its unit; a dash for none."""
    if value is None:
        return "–"
    return f"{number(value / 1e3)} s" if value >= 1e3 else f"{number(value)} ms"
