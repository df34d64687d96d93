"""Plots of the compositions' measurements: medians of the rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.bars import Bars, save


def plot(measured: Mapping[str, Any], file: Path) -> None:
    """Plot the levels' mean latencies, and the share of the utility that is earned, simulated and through the server.

    Args:
        measured: Measurements of the report.
        file: PNG to write.
    """
    levels = measured["levels"]
    cases = {"alone": levels["alone"], **{f"at {float(load):.0%}": rounds for load, rounds in levels["loads"].items()}}
    panels = [
        _panel("Tabi's levels: mean latency", "ms", cases, lambda cell: float(np.mean(cell["latencies_ms"])), log=True),
        _panel(
            "utility over text tasks, simulated",
            "% of the offered utility",
            _loads(measured["utility"]),
            lambda each: 100 * each["utility"] / each["offered"],
        ),
        _panel(
            "utility over text tasks, through the server",
            "% of the offered utility",
            _loads(measured["utility_served"]),
            lambda each: 100 * each["utility"],
        ),
    ]
    save(panels, file)


def plot_sharing(measured: Mapping[str, Any], file: Path) -> None:
    """Plot memory, throughput and mean latency of the system that shares a part, and of those that do not.

    Args:
        measured: Measurements of the report.
        file: PNG to write.
    """

    def figures(name: str) -> dict[str, list[float]]:
        return {system: [median(each[name] for each in rounds)] for system, rounds in measured.items()}

    first = next(iter(measured.values()))[0]
    cases = {
        f"at {float(load):.0%}": [
            {system: rounds[round_number]["loads"][load] for system, rounds in measured.items()}
            for round_number in range(len(next(iter(measured.values()))))
        ]
        for load in first["loads"]
    }
    panels = [
        Bars("memory of all processes (PSS)", "MiB", [""], figures("pss_mib")),
        Bars("saturated", "answers/s", [""], figures("per_second")),
        _panel("Poisson arrivals: mean latency", "ms", cases, lambda each: float(np.mean(each["latencies_ms"]))),
    ]
    save(panels, file)


def _loads(found: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{float(load):.0%}": rounds for load, rounds in found.items()}


def _panel(
    title: str,
    unit: str,
    cases: Mapping[str, Sequence[Mapping[str, Any]]],
    figure: Callable[[Any], float],
    *,
    log: bool = False,
) -> Bars:
    systems = next(iter(cases.values()))[0]
    return Bars(
        title,
        unit,
        list(cases),
        {name: [median(figure(each[name]) for each in rounds) for rounds in cases.values()] for name in systems},
        log,
    )
