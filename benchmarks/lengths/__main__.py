"""`python -m benchmarks.lengths [--quick] [--data DIR] [--json FILE]`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.lengths.measure import LadderBench, ladder_of, searched_ladders
from benchmarks.lengths.plot import AUTO, plot
from benchmarks.lengths.prepare import LengthsArtefacts, prepare
from benchmarks.lengths.workload import LONGEST, NAMES
from benchmarks.report import Claim, Report, progress
from tidal.arlo.manifest import load_arlo_manifest
from tidal.repository.entries import ModelEntry
from tidal_builders.arlo.length_distribution import LengthDistribution

_SEED = 1000


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer lengths and rounds; under 3 minutes.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder that contains tweet_lengths and xquad.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write results here, tables (.txt) and a plot beside it.")] = None,
) -> None:
    """Compare the lengths and the form that a build chooses with those that one might write by hand."""
    rounds, count = (3, 12) if quick else (7, 48)
    report = Report("lengths", quick)
    compare(report, prepare(data), rounds, count)
    report.finish(json)
    if json is not None:
        plot(report.document(), json.with_suffix(".png"))


def compare(report: Report, artefacts: LengthsArtefacts, rounds: int, count: int) -> None:
    """Measure all ladders for each distribution.

    Args:
        report: Report to add to.
        artefacts: Models, one for each distribution.
        rounds: Number of rounds.
        count: Number of lengths in a round.
    """
    found: dict[str, Any] = {}
    for name in NAMES:
        version = ModelEntry(artefacts.repository / f"lengths_{name}").latest()
        assert version is not None
        manifest = load_arlo_manifest(version)
        chosen = ladder_of(manifest)
        distribution = artefacts.workload.distribution(name, _SEED)
        ladders = {AUTO: chosen, **searched_ladders(distribution)}
        bench = LadderBench.open(manifest, version)
        bench.means(ladders, distribution.spread(count, seed=0), seed=0)  # opens and warms up
        means: dict[str, list[float]] = {each: [] for each in ladders}
        for turn in range(1, rounds + 1):
            progress(f"lengths of {name}, round {turn} of {rounds}")
            # The queries of a round are drawn again: none of them decided anything.
            drawn = artefacts.workload.lengths(name, count * 10, _SEED + turn)
            lengths = LengthDistribution.of_lengths(drawn, LONGEST).spread(count, seed=turn)
            for each, mean in bench.means(ladders, lengths, seed=turn).items():
                means[each].append(mean)
        found[name] = means
        _add(report, name, chosen.form, means, str([*chosen.lengths]))
    report.measured["mean_ms"] = found
    report.measured["precision"] = artefacts.precision


def _add(report: Report, name: str, form: str, means: dict[str, list[float]], lengths: str) -> None:
    others = {each: rounds for each, rounds in means.items() if each != AUTO}
    best = min(others, key=lambda each: statistics.median(others[each]))
    rows = []
    for each, measured in sorted(means.items(), key=lambda item: statistics.median(item[1])):
        ratios = [auto / own for auto, own in zip(means[AUTO], measured, strict=True)]
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        rows.append([each, f"{statistics.median(measured):.3f}", f"{statistics.median(ratios):.3f}", spread])
    title = f"lengths of {name}: chosen {form} {lengths}"
    report.add_table(title, ["runtimes", "mean ms", "auto / this", "rounds"], rows)
    ratio = statistics.median([auto / own for auto, own in zip(means[AUTO], others[best], strict=True)])
    report.claims.append(Claim(f"auto_vs_best_choice[{name}]", "<= 1.03", ratio, note=f"{form}; best: {best}"))


if __name__ == "__main__":
    typer.run(main)
