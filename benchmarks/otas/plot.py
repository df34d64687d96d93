"""Figure of the benchmark: utility on a server and in simulation, and the γ of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.otas import simulated
from benchmarks.otas.live import systems as live
from benchmarks.plots.bars import Bars, save

_TIDAL, _PAPER = "Tidal (pareto)", "published policy"
_LIVE = {
    live.PARETO: _TIDAL,
    live.PAPER: _PAPER,
    live.PETS: "PetS: γ 0 always",
    live.TOME: "ToMe: one γ below 0",
    live.VPT: "VPT: one γ above 0",
    live.INFAAS: "INFaaS: switches models",
    live.RESIDENT: "INFaaS, all resident",
}
_SIMULATED = {
    simulated.PARETO: _TIDAL,
    simulated.OTAS: _PAPER,
    simulated.PETS: _LIVE[live.PETS],
    "ToMe (-15)": _LIVE[live.TOME],
    "VPT (2)": _LIVE[live.VPT],
    simulated.INFAAS: _LIVE[live.INFAAS],
    simulated.PUBLISHED_INFAAS: "INFaaS, as published",
}
_UNIT = "% of the utility offered (higher is better)"


def plot(document: Mapping[str, Any], file: Path) -> None:
    """Draw the results as kept in JSON; without a live run, the simulated ones.

    Args:
        document: Content of the JSON file.
        file: PNG or SVG to write.
    """
    measured = document["measured"]
    panels = [_simulated({title: found for title, found in measured.items() if " trace, throughput of " in title})]
    if "live" in measured:
        rounds = measured["live"]["rounds"]
        panels = [_utility(rounds), _gammas(rounds), *panels]
    title = "Vision transformer under varying load: utility earned, and tokens added (γ > 0) or merged (γ < 0)"
    save(panels, title, document["machine"], file, tidal=[_TIDAL], variants=[_PAPER], width=5.8)


def _utility(rounds: list[Any]) -> Bars:
    scales = sorted(rounds[0]["outcomes"], key=float)
    shares = {
        label: [[_share(each["outcomes"][scale][name]) for each in rounds] for scale in scales]
        for name, label in _LIVE.items()
    }
    return Bars("live: utility by load", _UNIT, [f"load {float(scale):g}" for scale in scales], shares)


def _gammas(rounds: list[Any]) -> Bars:
    """The γ of the two policies' answers at the middle load."""
    scales = sorted(rounds[0]["outcomes"], key=float)
    scale = scales[len(scales) // 2]
    outcomes = [each["outcomes"][scale] for each in rounds]
    counts = {label: [each[name]["gammas"] for each in outcomes] for name, label in list(_LIVE.items())[:2]}
    every = sorted({gamma for of_rounds in counts.values() for found in of_rounds for gamma in found}, key=int)
    shares = {
        label: [[100 * found.get(gamma, 0) / sum(found.values()) for found in of_rounds] for gamma in every]
        for label, of_rounds in counts.items()
    }
    return Bars(
        f"live, load {float(scale):g}: γ of the answers", "% of the answers", [f"γ {gamma}" for gamma in every], shares
    )


def _simulated(cases: Mapping[str, Any]) -> Bars:
    groups = [title.replace(" trace, throughput of ", " trace,\n") for title in cases]
    known = next(iter(cases.values()))
    shares = {
        label: [[_share(found[name])] for found in cases.values()]
        for name, label in _SIMULATED.items()
        if name in known
    }
    return Bars("simulated: utility by trace, and by the source of the throughput", _UNIT, groups, shares)


def _share(found: Mapping[str, Any]) -> float:
    return 100 * float(found["utility"]) / float(found["offered"])
