"""Figures of the results: lone queries here and on another node, latency while a node is lost, and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.plots import style
from benchmarks.plots.bars import Bars, save


@style.styled
def plot(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document into a PNG or SVG."""
    lone, loss = document["measured"]["lone"], document["measured"]["loss"]
    figure, (hop, lost) = style.panels(2)
    names = {"local": "an instance of the same node", "remote": "an instance of another node"}
    for number, (side, colour) in enumerate(style.colours(list(names), ["remote"]).items()):
        places = [group - 0.2 + 0.4 * number for group in range(2)]
        style.bars(hop, places, [lone["p50_ms"][side], lone["p99_ms"][side]], 0.4, colour)
    hop.set_xticks(range(2), ["p50", "p99"])
    hop.set(ylabel="latency, ms", title="a lone query, an engine that costs next to nothing (lower is better)")
    hop.margins(y=0.2)
    style.legend(figure, {names[side]: colour for side, colour in style.colours(list(names), ["remote"]).items()})
    milliseconds = [seconds * 1e3 for seconds in loss["latency_s"]]
    lost.scatter(loss["sent_s"], milliseconds, s=3, color=style.TIDAL)
    lost.axvline(loss["killed_at_s"], color=style.PARTS[1], linestyle="--")
    lost.set(
        xlabel="sent, s",
        ylabel="latency, ms",
        yscale="log",
        title=f"one of two servers is killed: {loss['failed']} of {loss['queries']:,} failed",
    )
    style.finish(figure, "Two nodes that run the queries of one model together", document["machine"], file)


def plot_replan(document: Mapping[str, Any], file: Path) -> None:
    """Draw the time of the controller's decisions by case, from a report's JSON document into a PNG or SVG."""
    decisions = document["measured"]["replan"]
    by_case: dict[str, list[float]] = {}
    for each in decisions:
        by_case.setdefault(each["case"], []).append(each["seconds"] * 1e3)
    nodes = max(each["nodes"] for each in decisions)
    title = "time of a decision by what has changed (lower is better)"
    panel = Bars(title, "time, ms", list(by_case), {"Tidal": list(by_case.values())})
    save([panel], f"The controller of {nodes} nodes", document["machine"], file, tidal=["Tidal"], width=5.6)
