"""`python -m benchmarks.cluster.inflation [--quick] [--data DIR] [--json FILE]`: Arlo against DT by DT's costs.

The paper says that dynamic shapes take 1.22 to 3.56 times as long as static ones (§2.2), and not at which lengths. So
DT is simulated with one inflation at all lengths, and with several of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.cluster.simulated.figures import FIGURE_6, FIGURE_10, MEAN_VS, P98_VS, Setting
from benchmarks.cluster.simulated.inputs import DT_INFLATION, ClusterData
from benchmarks.plots import style
from benchmarks.report import Claim, Report
from tidal.simulator.arlo import ClusterResult, SystemName

INFLATIONS = (1.0, 1.1, DT_INFLATION, 1.35, 1.5, 1.75, 2.0)
SETTINGS = (*FIGURE_6, *FIGURE_10)


@dataclass(frozen=True, slots=True)
class InflationSweep:
    """Arlo's latency over DT's in one setting, by the inflation of DT.

    Attributes:
        mean: Ratio of the mean latencies, [inflations].
        p98: Ratio of the 98th percentiles, [inflations].
    """

    mean: tuple[float, ...]
    p98: tuple[float, ...]

    def inflation_for(self, ratio: float) -> float:
        """Return the inflation at which the mean latencies have this ratio, between the simulated ones; nan if none."""
        if not min(self.mean) <= ratio <= max(self.mean):
            return float("nan")
        return float(np.interp(-ratio, -np.asarray(self.mean), INFLATIONS))


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Shorter runs; under 3 minutes.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with twitter_2021_rate and tweet_lengths.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write results here, tables (.txt) and a plot beside it.")] = None,
) -> None:
    """Simulate Figures 6 and 10 with several costs of dynamic shapes."""
    report, inputs = Report("inflation", quick), ClusterData(data)
    print(inputs.description)
    report.measured |= {"data": inputs.description, "inflations": INFLATIONS, "ratios": {}}
    sweeps = {setting.title: sweep(setting, inputs, quick) for setting in SETTINGS}
    rows = []
    for setting in SETTINGS:
        found, paper = sweeps[setting.title], 1 + MEAN_VS[setting.title]["dt"]
        report.measured["ratios"][setting.title] = {"mean": found.mean, "p98": found.p98, "paper_mean": paper}
        pairs = [f"{mean:.2f} / {p98:.2f}" for mean, p98 in zip(found.mean, found.p98, strict=True)]
        same = found.inflation_for(paper)
        rows.append([setting.title, *pairs, f"{paper:.3f}", "-" if np.isnan(same) else f"{same:.2f}"])
        figure = setting.title.partition(":")[0].lower()
        at = INFLATIONS.index(DT_INFLATION)
        note = f"DT's inflation {DT_INFLATION:g} at all lengths; the paper's ratio needs {same:.2f}"
        report.claims.append(Claim(f"sim_mean_vs_dt[{figure}]", "<= 0.80", found.mean[at], f"{paper:.3f}", note))
        published = f"{1 + P98_VS[figure.capitalize().rstrip('ab')]['dt']:.3f}"
        report.claims.append(Claim(f"sim_p98_vs_dt[{figure}]", "<= 0.90", found.p98[at], published, note))
    columns = ["setting", *(f"{each:g}" for each in INFLATIONS), "paper's mean", "inflation that gives it"]
    report.add_table("Arlo over DT: mean / p98, by the inflation of dynamic shapes", columns, rows)
    report.finish(json)
    if json is not None:
        plot(report.document(), json.with_suffix(".png"))


def sweep(setting: Setting, data: ClusterData, quick: bool) -> InflationSweep:
    """Simulate a setting once with Arlo and with DT at every inflation, all with the same requests."""
    arlo = replace(setting, systems=(SystemName.ARLO,)).run(data, quick)[SystemName.ARLO.value]
    others = []
    for inflation in INFLATIONS:
        title = f"{setting.title}, inflation {inflation:g}"
        case = replace(setting, title=title, stream=setting.stream.inflated(inflation), systems=(SystemName.DT,))
        others.append(case.run(data, quick)[SystemName.DT.value])
    return InflationSweep(
        _ratios(arlo, others, lambda result: result.mean_ms),
        _ratios(arlo, others, lambda result: result.percentile_ms(98)),
    )


@style.styled
def plot(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document into a PNG or SVG."""
    ratios = document["measured"]["ratios"]
    figure, panels = style.panels(2)
    for axes, key in zip(panels, ("mean", "p98"), strict=True):
        for colour, (title, found) in zip(style.PARTS, ratios.items(), strict=False):
            name = title.partition(",")[0]
            style.line(axes, INFLATIONS, [[value] for value in found[key]], colour, name)
            if key == "mean":
                axes.axhline(found["paper_mean"], color=colour, linewidth=0.8, linestyle=":")
        axes.axvline(DT_INFLATION, color="#24292f", linewidth=0.8, linestyle="--")
        title = "mean latency" if key == "mean" else "98th percentile"
        axes.set(
            xlabel="inflation of dynamic shapes", ylabel="Arlo over DT (lower is better)", yscale="log", title=title
        )
        axes.legend()
    title = "Arlo against DT by what dynamic shapes cost (dotted: the paper's; dashed: the smallest published cost)"
    style.finish(figure, title, document["machine"], file)


def _ratios(
    arlo: ClusterResult, others: Sequence[ClusterResult], of: Callable[[ClusterResult], float]
) -> tuple[float, ...]:
    return tuple(of(arlo) / of(other) for other in others)


if __name__ == "__main__":
    typer.run(main)
