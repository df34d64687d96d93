"""The figure of generations: total time and latency by λ (Figure 5), tokens over time (Figure 7), latency growth."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.flover.plan import CONSTANT, REQUESTS
from benchmarks.flover.systems import INSTANCES, LABELS, TIDAL, UNSHUFFLED
from benchmarks.plots import style

_SWEPT = re.compile(r"λ (\d+) ms")
_TOGETHER = re.compile(r"(\d+) at once")


@style.styled
def save(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document into a PNG or SVG."""
    outcomes: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]] = document["measured"]["outcomes"]
    colours = style.colours([*LABELS, *_others(outcomes)], [TIDAL], [UNSHUFFLED])
    labels = {system: LABELS.get(system, system) for system in colours}
    figure, (totals, latencies, progress, growth) = style.panels(2, 2, width=5.6)
    swept = {int(found[1]): cell for case, cell in outcomes.items() if (found := _SWEPT.fullmatch(case))}
    for system in (TIDAL, INSTANCES):
        gaps = [gap for gap, cell in swept.items() if system in cell]
        for axes, value in ((totals, _total), (latencies, _latency)):
            rounds = [[value(each) for each in swept[gap][system]] for gap in gaps]
            style.line(axes, gaps, rounds, colours[system], labels[system])
    for axes, unit in ((totals, "total time, s"), (latencies, "mean latency, s")):
        axes.set(xscale="log", xlabel="mean gap between arrivals λ, ms", ylabel=unit, ylim=(0, None))
        axes.set_title(f"{REQUESTS} requests at random (lower is better)")
    for system, cells in sorted(outcomes.get(CONSTANT, {}).items(), key=lambda item: list(colours).index(item[0])):
        seconds, tokens = zip(*cells[0]["progress"], strict=True)
        progress.step(seconds, tokens, where="post", color=colours[system], label=labels[system])
    progress.set(xlabel="time, s", ylabel="tokens", title=f"{REQUESTS} requests, one every 500 ms (steeper is better)")
    together = {int(found[1]): cell for case, cell in outcomes.items() if (found := _TOGETHER.fullmatch(case))}
    for system in colours:
        counts = [count for count, cell in together.items() if system in cell]
        if counts:
            rounds = [[_latency(each) for each in together[count][system]] for count in counts]
            style.line(growth, counts, rounds, colours[system], labels[system])
    growth.set_xscale("log", base=2)
    growth.set_xticks(list(together), list(map(str, together)))
    growth.set(xlabel="requests at once", ylabel="mean latency, s", ylim=(0, None))
    growth.set_title("all at once, 512 tokens each (lower is better)")
    shown = {system for cell in outcomes.values() for system in cell}
    style.legend(figure, {labels[system]: colour for system, colour in colours.items() if system in shown})
    title = "Generations on a decoder of GPT-2 small's size, by arrivals and number of requests"
    style.finish(figure, title, document["machine"], file)


def _others(outcomes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Systems that only some loads are measured on, such as windows of dynamic batching."""
    return list(dict.fromkeys(system for cell in outcomes.values() for system in cell if system not in LABELS))


def _total(outcome: Mapping[str, Any]) -> float:
    return float(outcome["total_s"])


def _latency(outcome: Mapping[str, Any]) -> float:
    latencies = outcome["latencies_s"]
    return float(sum(latencies) / len(latencies))
