"""A load in pictures: utility, accuracies, γ and outcomes (Figures 9 to 13), of the first round."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.otas.live.load import Load
from benchmarks.otas.live.outcome import TYPES, Outcome
from benchmarks.otas.live.rounds import Run
from benchmarks.otas.live.systems import PAPER, PARETO, SYSTEMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(run: Run, scale: float, load: Load, file: Path) -> None:
    """Write a picture in the format that the file's name ends in.

    Args:
        run: with its first round complete.
        scale: of the load.
        load: what was sent in the first round.
        file: to write.
    """
    from matplotlib.figure import Figure

    outcomes = run.rounds[0].outcomes[str(scale)]
    labels = {system: f"{system} ({gamma})" if (gamma := run.gamma(system, scale)) else system for system in SYSTEMS}
    figure = Figure(figsize=(16, 9), layout="constrained")
    ((total, utility, accuracy), (over_time, gammas, types)) = figure.subplots(2, 3)
    figure.suptitle(f"live, load {scale:g}: {len(load)} queries, {run.rounds[0].capacity:.0f}/s answered at γ 0")
    total.bar([labels[system] for system in SYSTEMS], [outcomes[system].utility for system in SYSTEMS])
    total.set(ylabel="utility", title="utility (Figures 9, 10)")
    for system in SYSTEMS:
        earned, accuracies = outcomes[system].earned, np.sort(outcomes[system].accuracies)
        utility.plot(np.arange(1, len(earned) + 1), earned, label=labels[system])
        accuracy.plot(accuracies, np.linspace(0, 1, len(accuracies)), label=labels[system])
    utility.set(xlabel="time, s", ylabel="utility so far", title="utility over time (Figure 9)")
    utility.legend(fontsize="small")
    accuracy.set(xlabel="share of right ones", ylabel="share", title="accuracy of each 32 answers (Figure 11)")
    every = sorted({gamma for system in (PARETO, PAPER) for gamma in outcomes[system].gammas})
    _over_time(over_time, outcomes[PARETO], every)
    arrivals = np.bincount(load.times.astype(int))
    over_time.step(np.arange(len(arrivals)), arrivals, where="post", color="black", label="arrivals")
    over_time.set(xlabel="time, s", ylabel="queries a second", title=f"γ of {PARETO} over time")
    over_time.legend(fontsize="small")
    places = np.arange(len(every))
    for shift, system in ((-0.2, PAPER), (0.2, PARETO)):
        counts = np.array([outcomes[system].gammas.get(gamma, 0) for gamma in every])
        gammas.bar(places + shift, counts / max(1, counts.sum()), 0.4, label=system)
    gammas.set_xticks(places, [str(gamma) for gamma in every])
    gammas.set(xlabel="γ", ylabel="share of answers", title="γ (Figure 12)")
    gammas.legend(fontsize="small")
    below = np.zeros(len(SYSTEMS))
    shares = np.array([outcomes[system].types for system in SYSTEMS]) / len(load)
    for name, share in zip(TYPES, shares.T, strict=True):
        types.bar([labels[system] for system in SYSTEMS], share, bottom=below, label=name)
        below += share
    types.set(ylabel="share of queries", title="outcomes (Figure 13)")
    types.legend(fontsize="small")
    for axes in (total, types):
        axes.tick_params(axis="x", labelrotation=25, labelsize="small")
    figure.savefig(file, dpi=110)


def _over_time(axes: Axes, outcome: Outcome, gammas: list[int]) -> None:
    """Stacked answers of each second by γ."""
    from matplotlib import colormaps

    below = np.zeros(len(outcome.by_gamma))
    colours = np.linspace(0, 1, max(2, len(gammas)))
    for gamma, colour in zip(gammas, colours, strict=False):
        counts = np.array([of_second.get(str(gamma), 0) for of_second in outcome.by_gamma])
        axes.bar(
            np.arange(len(counts)) + 0.5,
            counts,
            1.0,
            bottom=below,
            label=f"γ {gamma}",
            color=colormaps["coolwarm"](colour),
        )
        below += counts
