"""What came of a search: as data, as a table, and as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel
from rich.table import Table

from tidal.tabi.manifest import Calibration, Candidate, Latency, Metric, Target
from tidal_builders.tabi.calibrate import Bin
from tidal_builders.tabi.search import SearchResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of the front of all candidates, what a table shows.
_MOST_SHOWN = 7


class LevelReport(BaseModel):
    """A level alone, on the report part."""

    name: str
    score: float
    latency: Latency
    calibration: Calibration
    reliability_before: tuple[Bin, ...]
    reliability_after: tuple[Bin, ...]


class SearchReport(BaseModel):
    """What a search found and what was chosen of it; levels ascend by score, candidates by latency."""

    metric: Metric
    target: Target
    rows: dict[str, int]
    levels: tuple[LevelReport, ...]
    candidates: tuple[Candidate, ...]
    chosen: int
    tried: int
    too_slow: int


def report_of(
    result: SearchResult, names: Sequence[str], metric: Metric, target: Target, rows: dict[str, int], chosen: int
) -> SearchReport:
    """The report of a search.

    Args:
        result: what it found.
        names: of the levels in the order that they were given to it.
        metric: that it was for.
        target: that the choice was for.
        rows: queries by part.
        chosen: index of the chosen candidate.
    """
    levels = tuple(
        LevelReport(
            name=names[each.index],
            score=each.score,
            latency=each.latency,
            calibration=each.calibrated.calibration,
            reliability_before=each.calibrated.before,
            reliability_after=each.calibrated.after,
        )
        for each in result.levels
    )
    return SearchReport(
        metric=metric,
        target=target,
        rows=rows,
        levels=levels,
        candidates=result.candidates,
        chosen=chosen,
        tried=result.tried,
        too_slow=result.too_slow,
    )


def front(candidates: Sequence[Candidate]) -> list[int]:
    """Indices of the candidates that no other beats on the selection part in both score and mean latency."""
    by_latency = sorted(
        range(len(candidates)),
        key=lambda index: (candidates[index].selection.latency.mean, -candidates[index].selection.score),
    )
    best = float("-inf")
    found: list[int] = []
    for index in by_latency:
        if candidates[index].selection.score > best:
            best = candidates[index].selection.score
            found.append(index)
    return found


def level_table(report: SearchReport) -> Table:
    """The levels for the terminal: what each does alone and how well its confidence is calibrated."""
    grid = _table(f"levels, alone, on {report.rows['report']} queries of the report part")
    for heading in ("level", report.metric, "mean ms", "p75 ms", "p99 ms", "T", "ECE before", "ECE after"):
        grid.add_column(heading, justify="left" if heading == "level" else "right")
    for level in report.levels:
        calibration, latency = level.calibration, level.latency
        grid.add_row(
            level.name,
            f"{level.score:.4f}",
            *(f"{each:.2f}" for each in (latency.mean, latency.p75, latency.p99)),
            "–" if calibration.regression else f"{calibration.temperature:.2f}",
            *("–" if each is None else f"{each:.3f}" for each in (calibration.ece_before, calibration.ece_after)),
        )
    return grid


def candidate_table(report: SearchReport) -> Table:
    """The candidates for the terminal, the chosen one with a star.

    Shown are the single levels, some of the front over all, the chosen one, and the nearest to it with the other
    weighting; the report itself has all. A narrow terminal breaks the names, which are by far the widest cells.
    """
    shown, chosen = _worth_showing(report), report.candidates[report.chosen]
    grid = _table(
        f"{len(shown)} of {len(report.candidates)} candidates, kept of {report.tried} tried "
        f"({report.too_slow} too slow at p75)"
    )
    grid.add_column("candidate", overflow="fold")
    for heading in ("selection", "report", "mean\nms", "p99\nms", "levels\n%", "pruned\n%"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for index in shown:
        mark, style = ("* ", "bold") if index == report.chosen else ("  ", None)
        grid.add_row(*_cells(mark, report.candidates[index]), style=style)
    grid.caption = "* chosen" + "".join(f", {each}" for each in _weights(chosen))
    return grid


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", box=None, pad_edge=False)
    table.padding = (0, 2, 0, 0)
    return table


def _weights(candidate: Candidate) -> Iterator[str]:
    """The ensemble's weights by the number of levels that have run."""
    for weights in candidate.weights[1:]:
        yield f"weights after {len(weights)} levels " + " ".join(f"{each:.2f}" for each in weights)


def _worth_showing(report: SearchReport) -> list[int]:
    """Single levels, some of the front, the chosen one and its like with the other weighting, by latency."""
    candidates, best = report.candidates, front(report.candidates)
    shown = {best[round(place * (len(best) - 1) / (_MOST_SHOWN - 1))] for place in range(_MOST_SHOWN)}
    chosen = candidates[report.chosen]
    others = [
        index
        for index, each in enumerate(candidates)
        if each.levels == chosen.levels and each.weighting != chosen.weighting
    ]
    nearest = sorted(others, key=lambda index: _distance(candidates[index], chosen))[:1]
    singles = [index for index, each in enumerate(candidates) if len(each.levels) == 1]
    return sorted({*shown, report.chosen, *nearest, *singles})


def _distance(one: Candidate, other: Candidate) -> float:
    return abs(one.selection.latency.mean - other.selection.latency.mean)


def _cells(mark: str, candidate: Candidate) -> tuple[str, ...]:
    found = candidate.reported
    return (
        mark + candidate.name,
        f"{candidate.selection.score:.4f}",
        f"{found.score:.4f}",
        f"{found.latency.mean:.2f}",
        f"{found.latency.p99:.2f}",
        " ".join(f"{100 * each:.0f}" for each in found.returned),
        "–" if candidate.pruning is None else f"{100 * found.pruned:.1f}",
    )


def plot_candidates(report: SearchReport, path: Path) -> None:
    """Score against mean latency on the report part, by combination of levels; the chosen one is marked."""
    figure = _figure(8, 5)
    axes: Axes = figure.subplots()
    combinations = sorted({each.levels for each in report.candidates}, key=lambda levels: (len(levels), levels))
    for levels in combinations:
        points = [each.reported for each in report.candidates if each.levels == levels]
        axes.plot(
            [each.latency.mean for each in points],
            [each.score for each in points],
            linestyle="none",
            marker="s" if len(levels) == 1 else ".",
            label=" → ".join(report.levels[level].name for level in levels),
        )
    best = [report.candidates[index].reported for index in front(report.candidates)]
    axes.plot(
        [each.latency.mean for each in best],
        [each.score for each in best],
        color="grey",
        linewidth=0.8,
        zorder=1,
        label="front of the selection part",
    )
    chosen = report.candidates[report.chosen].reported
    axes.plot(chosen.latency.mean, chosen.score, "o", markersize=14, fillstyle="none", color="black", label="chosen")
    if report.target.accuracy is not None:
        axes.axhline(report.target.accuracy, color="grey", linewidth=0.8, linestyle=":", label="target")
    if report.target.latency_ms is not None:
        axes.axvline(report.target.latency_ms, color="grey", linewidth=0.8, linestyle=":", label="target")
    # A target far beyond all candidates must not press them together.
    slowest = max(each.reported.latency.mean for each in report.candidates)
    axes.set(xlabel="mean latency of one query, ms", ylabel=f"{report.metric}, report part", xlim=(0, 1.05 * slowest))
    axes.legend()
    figure.savefig(path, dpi=120)


def plot_reliability(report: SearchReport, path: Path) -> None:
    """How often answers are right by how sure each level is of them, before calibration and after, report part."""
    figure = _figure(4 * len(report.levels), 4)
    for axes, level in zip(figure.subplots(1, len(report.levels), squeeze=False)[0], report.levels, strict=True):
        axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle=":", label="as sure as right")
        drawn = (
            ("before", level.reliability_before, level.calibration.ece_before),
            ("after", level.reliability_after, level.calibration.ece_after),
        )
        for name, bins, error in drawn:
            label = name if error is None else f"{name}, ECE {error:.3f}"
            sure, right = [each.confidence for each in bins], [each.accuracy for each in bins]
            (line,) = axes.plot(sure, right, linewidth=0.8, label=label)
            # Bins of few queries, which scatter most, are drawn small.
            total = sum(each.count for each in bins)
            axes.scatter(sure, right, s=[5 + 300 * each.count / total for each in bins], color=line.get_color())
        axes.set(xlabel="confidence", ylabel="share that is right", title=level.name, xlim=(0, 1), ylim=(0, 1.02))
        axes.legend()
    figure.savefig(path, dpi=120)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
