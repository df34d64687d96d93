"""Plots of a load: utility, accuracies, γ and outcomes of the first round (Figures 9 to 13)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.otas.live.load import OtasLoad
from benchmarks.otas.live.outcome import TYPES, OtasOutcome
from benchmarks.otas.live.rounds import OtasRun
from benchmarks.otas.live.systems import PAPER, PARETO, SYSTEMS
from benchmarks.plots import style
from benchmarks.report import machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_COLOURS = style.colours(SYSTEMS, [PARETO], [PAPER])


@style.styled
def plot(run: OtasRun, scale: float, load: OtasLoad, file: Path) -> None:
    """Write a picture in the format that the file's name ends in.

    Args:
        run: Run whose first round is complete.
        scale: Factor on the load.
        load: Queries of the first round.
        file: File to write.
    """
    outcomes = run.rounds[0].outcomes[str(scale)]
    labels = {system: f"{system} ({gamma})" if (gamma := run.gamma(system, scale)) else system for system in SYSTEMS}
    figure, (total, utility, accuracy, over_time, gammas, types) = style.panels(3, 2, width=5.2)
    for place, (system, colour) in enumerate(_COLOURS.items()):
        earned = [each.outcomes[str(scale)][system].utility for each in run.rounds if str(scale) in each.outcomes]
        style.bars(total, [place], [earned], 0.7, colour)
    total.set_xticks(range(len(_COLOURS)), [labels[system] for system in _COLOURS])
    total.set(ylabel="utility", title="utility earned, all rounds (higher is better)")
    for system, colour in _COLOURS.items():
        earned, accuracies = outcomes[system].earned, np.sort(outcomes[system].accuracies)
        utility.plot(np.arange(1, len(earned) + 1), earned, label=labels[system], color=colour)
        accuracy.plot(accuracies, np.linspace(0, 1, len(accuracies)), label=labels[system], color=colour)
    utility.set(xlabel="time, s", ylabel="utility so far", title="utility over time, first round (higher is better)")
    utility.legend(fontsize="small")
    accuracy.set(
        xlabel="accuracy", ylabel="share of batches", title="accuracy of each 32 answers (further right is better)"
    )
    every = sorted({gamma for system in (PARETO, PAPER) for gamma in outcomes[system].gammas})
    _over_time(over_time, outcomes[PARETO], every)
    arrivals = np.bincount(load.times.astype(int))
    over_time.step(np.arange(len(arrivals)), arrivals, where="post", color="black", label="arrivals")
    over_time.set(xlabel="time, s", ylabel="queries a second", title=f"γ of {PARETO} over time")
    over_time.legend(fontsize="small")
    places = np.arange(len(every))
    for shift, system in ((-0.2, PAPER), (0.2, PARETO)):
        counts = np.array([outcomes[system].gammas.get(gamma, 0) for gamma in every])
        gammas.bar(places + shift, counts / max(1, counts.sum()), 0.4, label=system, color=_COLOURS[system])
    gammas.set_xticks(places, [str(gamma) for gamma in every])
    gammas.set(xlabel="γ", ylabel="share of answers", title="γ of answers")
    gammas.legend(fontsize="small")
    below = np.zeros(len(_COLOURS))
    shares = np.array([outcomes[system].types for system in _COLOURS]) / len(load)
    for name, colour, share in zip(TYPES, style.PARTS, shares.T, strict=True):
        types.bar([labels[system] for system in _COLOURS], share, bottom=below, label=name, color=colour)
        below += share
    types.set(ylabel="share of queries", title="outcomes, first round")
    types.legend(fontsize="small")
    for axes in (total, types):
        axes.tick_params(axis="x", labelrotation=25, labelsize="small")
    capacity = f"{run.rounds[0].capacity:.0f} queries per second answered at γ 0"
    style.finish(figure, f"Live, load {scale:g}: {len(load)} queries, {capacity}", machine(), file)


def _over_time(axes: Axes, outcome: OtasOutcome, gammas: list[int]) -> None:
    """Plot the number of answers per second, stacked by γ."""
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
