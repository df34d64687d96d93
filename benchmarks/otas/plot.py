"""A trace in pictures: utility over time, accuracies, γ and outcomes (Figures 9 to 13)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.otas.inputs import GAMMAS
from benchmarks.otas.simulated import INFAAS, OTAS, PARETO, PETS, Compared

_SHOWN = (OTAS, PARETO, PETS, INFAAS, "ToMe (-15)", "VPT (2)")


def plot(compared: Compared, file: Path) -> None:
    """Write a picture in the format that the file's name ends in."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    ((utility, accuracy), (gammas, outcomes)) = figure.subplots(2, 2)
    figure.suptitle(compared.title)
    for system in _SHOWN:
        result = compared.results[system]
        utility.plot(result.earned_until(int(result.ended) + 1) / 1e3, label=system)
        accuracies = np.sort(result.accuracies)
        accuracy.plot(accuracies, np.linspace(0, 1, len(accuracies)), label=system)
    utility.set(xlabel="time, s", ylabel="utility, thousands", title="utility (Figures 9, 10)")
    utility.legend(fontsize="small")
    accuracy.set(xlabel="accuracy", ylabel="share of batches", title="accuracy of batches (Figure 11)")
    accuracy.legend(fontsize="small")
    places = np.arange(len(GAMMAS))
    for shift, system in ((-0.2, OTAS), (0.2, PARETO)):
        by_gamma = compared.results[system].by_gamma
        shares = np.array([by_gamma.get(gamma, 0) for gamma in GAMMAS]) / sum(by_gamma.values())
        gammas.bar(places + shift, shares, 0.4, label=system)
    gammas.set_xticks(places, [str(gamma) for gamma in GAMMAS])
    gammas.set(xlabel="γ", ylabel="share of executed queries", title="γ (Figure 12)")
    gammas.legend(fontsize="small")
    below = np.zeros(len(_SHOWN))
    shares_of = np.array([compared.results[system].shares for system in _SHOWN])
    for name, shares in zip(("1: right", "2: wrong", "3: late", "4: evicted"), shares_of.T, strict=True):
        outcomes.bar(_SHOWN, shares, bottom=below, label=name)
        below += shares
    outcomes.tick_params(axis="x", labelrotation=20, labelsize="small")
    outcomes.set(ylabel="share of queries", title="outcomes (Figure 13)")
    outcomes.legend(fontsize="small")
    figure.savefig(file, dpi=110)
