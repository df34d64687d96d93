"""Figures of the compositions: latencies of a cascade, utility earned, and the gain of sharing a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plots.bars import Bars, save

_ARLO = "Arlo"
_BY_UTILITY = "PetS, by utility"
_VARIANTS = ("Arlo, static", "Arlo, models", "Arlo, partitioned")
_UTILITY = "% of the offered utility"


def plot(document: Mapping[str, Any], file: Path) -> None:
    """Plot a cascade's mean latencies, and the share of the utility that is earned, simulated and through the server.

    Args:
        document: JSON document of the report.
        file: PNG or SVG to write.
    """
    measured = document["measured"]
    levels = measured["levels"]
    cases = {"alone": levels["alone"], **{f"at {float(load):.0%}": rounds for load, rounds in levels["loads"].items()}}
    panels = [
        _panel("mean latency of a cascade (lower is better)", "ms", cases, _mean, log=True),
        _panel("text tasks, simulated (higher is better)", _UTILITY, _loads(measured["utility"]),
               lambda each: 100 * each["utility"] / each["offered"]),
        _panel("text tasks, through the server (higher is better)", _UTILITY, _loads(measured["utility_served"]),
               lambda each: 100 * each["utility"]),
    ]  # fmt: skip
    title = "Cascades over Arlo's runtimes, and PetS with OTAS's utility, by load"
    save(panels, title, document["machine"], file, tidal=[_ARLO, _BY_UTILITY], variants=_VARIANTS)


def plot_sharing(document: Mapping[str, Any], file: Path, *, shared: str, title: str) -> None:
    """Plot memory, throughput and mean latency of the system that shares a part, and of those that do not.

    Args:
        document: JSON document of the report.
        file: PNG or SVG to write.
        shared: Name of the system that shares a part.
        title: Title of the figure.
    """
    measured = document["measured"]

    def rounds(name: str) -> dict[str, list[list[float]]]:
        return {system: [[each[name] for each in of_system]] for system, of_system in measured.items()}

    first = next(iter(measured.values()))
    cases = {
        f"at {float(load):.0%}": [
            {system: of_system[round_number]["loads"][load] for system, of_system in measured.items()}
            for round_number in range(len(first))
        ]
        for load in first[0]["loads"]
    }
    panels = [
        Bars("memory of all processes (lower is better)", "PSS, MiB", [""], rounds("pss_mib")),
        Bars("saturated (higher is better)", "answers per second", [""], rounds("per_second")),
        _panel("mean latency, Poisson arrivals (lower is better)", "ms", cases, _mean),
    ]
    save(panels, title, document["machine"], file, tidal=[shared])


def _loads(found: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{float(load):.0%}": rounds for load, rounds in found.items()}


def _mean(cell: Any) -> float:
    return float(np.mean(cell["latencies_ms"]))


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
        {name: [[figure(each[name]) for each in rounds] for rounds in cases.values()] for name in systems},
        log,
    )
