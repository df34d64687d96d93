"""Plots of a trace: utility over time, accuracies, γ and outcomes (Figures 9 to 13)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.otas.inputs import GAMMAS
from benchmarks.otas.simulated import INFAAS, OTAS, PARETO, PETS, ComparedPolicies
from benchmarks.plots import style
from benchmarks.report import machine

_COLOURS = style.colours([PARETO, OTAS, PETS, INFAAS, "ToMe (-15)", "VPT (2)"], [PARETO], [OTAS])
_SHOWN = tuple(_COLOURS)


@style.styled
def plot(compared: ComparedPolicies, file: Path) -> None:
    """Write a picture in the format that the file's name ends in."""
    figure, (utility, accuracy, gammas, outcomes) = style.panels(2, 2, width=5.6)
    for system in _SHOWN:
        result = compared.results[system]
        utility.plot(result.earned_until(int(result.ended) + 1) / 1e3, label=system, color=_COLOURS[system])
        accuracies = np.sort(result.accuracies)
        accuracy.plot(accuracies, np.linspace(0, 1, len(accuracies)), label=system, color=_COLOURS[system])
    utility.set(xlabel="time, s", ylabel="utility, thousands", title="utility earned over time (higher is better)")
    utility.legend(fontsize="small")
    accuracy.set(xlabel="accuracy", ylabel="share of batches", title="accuracy of batches (further right is better)")
    accuracy.legend(fontsize="small")
    places = np.arange(len(GAMMAS))
    for shift, system in ((-0.2, OTAS), (0.2, PARETO)):
        by_gamma = compared.results[system].by_gamma
        shares = np.array([by_gamma.get(gamma, 0) for gamma in GAMMAS]) / sum(by_gamma.values())
        gammas.bar(places + shift, shares, 0.4, label=system, color=_COLOURS[system])
    gammas.set_xticks(places, [str(gamma) for gamma in GAMMAS])
    gammas.set(xlabel="γ", ylabel="share of executed queries", title="γ of executed queries")
    gammas.legend(fontsize="small")
    below = np.zeros(len(_SHOWN))
    shares_of = np.array([compared.results[system].shares for system in _SHOWN])
    names = ("1: right", "2: wrong", "3: late", "4: evicted")
    for name, colour, shares in zip(names, style.PARTS, shares_of.T, strict=True):
        outcomes.bar(_SHOWN, shares, bottom=below, label=name, color=colour)
        below += shares
    outcomes.tick_params(axis="x", labelrotation=20, labelsize="small")
    outcomes.set(ylabel="share of queries", title="outcomes")
    outcomes.legend(fontsize="small")
    style.finish(figure, f"Simulated: {compared.title}", machine(), file)
