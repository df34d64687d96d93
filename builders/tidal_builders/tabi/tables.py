"""The report of a search for the terminal: tables of levels and candidates, and remarks on them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from rich.table import Table

from tidal.tabi.manifest import Candidate, TemperatureChoice
from tidal.tabi.selection import escalation_rate, meeting, provable_losses, queries_for, safest
from tidal.tabi.serving_overhead import ServingOverhead
from tidal_builders.tabi.pareto import pareto_front
from tidal_builders.tabi.search_report import SearchReport

# Maximum number of candidates of the Pareto front in a table.
_MAX_SHOWN = 7
# Losses in a remark: how many that are supported, and those that a number of queries is given for.
_MAX_LOSSES = 4
_USUAL_LOSSES = (0.005, 0.01, 0.02)


def level_table(report: SearchReport) -> Table:
    """Return the table of the levels: score and latency of each alone, and its calibration.

    Args:
        report: Report of the search.
    """
    grid = _table(f"levels, alone, on {report.rows['report']} queries of the report part")
    engine = ("engine\nmean ms", "engine\np75 ms", "engine\np99 ms")
    for heading in ("level", report.metric, *engine, "T", "ECE\nbefore", "ECE\nafter"):
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
    """Return the table of candidates, with a star for the chosen one.

    It has the single levels, some of the Pareto front, the chosen candidate, and the nearest one with the other
    weighting; the report has all. A narrow terminal wraps the names, which are by far the widest cells.

    Args:
        report: Report of the search.
    """
    shown = _shown_candidates(report)
    measured = "engines" if report.serving is None else "served"
    grid = _table(
        f"{len(shown)} of {len(report.candidates)} candidates, kept of {report.tried} tried "
        f"({report.too_slow} too slow at p75)"
    )
    grid.add_column("candidate", overflow="fold")
    times = (f"{measured}\nmean ms", f"{measured}\np99 ms")
    for heading in ("selection", "report", *times, "levels\n%", "pruned\n%"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for index in shown:
        mark, style = ("* ", "bold") if index == report.chosen else ("  ", None)
        grid.add_row(*_cells(mark, report.candidates[index]), style=style)
    if report.chosen is not None:
        chosen = report.candidates[report.chosen]
        grid.caption = "* chosen" + "".join(f", {each}" for each in _weights(chosen))
    return grid


def remarks(report: SearchReport) -> Iterator[str]:
    """Yield remarks on the tables, one sentence each: temperatures, serving overhead, the choice, and warnings.

    Args:
        report: Report of the search.
    """
    for level in report.levels:
        if level.calibration.choice is not None:
            yield f"{level.name}: {_temperature(level.calibration.choice)}"
    if report.serving is not None:
        yield _serving(report.serving)
    if report.chosen is None:
        yield _possible_targets(report)
    elif len(report.levels) > 1 and len(report.candidates[report.chosen].levels) == 1:
        yield _single(report, report.candidates[report.chosen])
    loss = _losses(report)
    if loss:
        yield loss
    yield from (f"warning: {warning}" for warning in report.warnings)


def _temperature(choice: TemperatureChoice) -> str:
    if choice.fitted is None:
        return f"T = 1: {choice.queries} queries of the calibration part are too few to fit a temperature"
    gains = (
        f"out of fold the negative log-likelihood falls by {choice.nll_gain:.4f} (standard error "
        f"{choice.nll_error:.4f}) and the ECE by {choice.ece_gain:.4f} ({choice.ece_error:.4f})"
    )
    of = f"on {choice.queries} queries of the calibration part"
    if choice.kept:
        return f"T = {choice.fitted:.2f}, which is better than 1 {of}: {gains}"
    return f"T = 1, since {choice.fitted:.2f} is not shown to be better {of}: {gains}"


def _serving(serving: ServingOverhead) -> str:
    alone = ", ".join(f"{ms:.2f} ms to {name}" for name, ms in serving.alone_ms.items())
    onward = ", ".join(
        f"{each.ms:.2f} ms from {each.below} to {each.above}"
        + ("" if each.pruned_ms is None else f" ({each.pruned_ms:.2f} ms with pruning)")
        for each in serving.onward
    )
    return (
        f"serving adds to the engines' time: {alone}; re-routing adds {onward} (one query at a time, "
        f"{serving.queries} queries through a server on {serving.processor})"
    )


def _single(report: SearchReport, chosen: Candidate) -> str:
    """Return the remark for a choice of one level alone."""
    names = [level.name for level in report.levels]
    others = [name for place, name in enumerate(names) if place != chosen.levels[0]]
    found = (report.candidates[index] for index in meeting(report.candidates, report.target))
    fastest = min(
        (each for each in found if len(each.levels) > 1),
        key=lambda each: each.selection.latency.mean,
        default=None,
    )
    slower = (
        "no cascade meets it"
        if fastest is None
        else f"the fastest cascade takes {fastest.selection.latency.mean:.2f} ms"
    )
    return (
        f"a cascade brings no advantage: {names[chosen.levels[0]]} alone is the best candidate for the target, with "
        f"{chosen.selection.latency.mean:.2f} ms on the selection part; {slower}. It answers all queries; "
        f"{', '.join(others)} {'is' if len(others) == 1 else 'are'} not loaded"
    )


def _losses(report: SearchReport) -> str:
    """Return which accuracy losses the data supports, and how much of it the usual ones need."""
    candidates = report.candidates
    supported: dict[float, int] = {}
    for index, loss in provable_losses(candidates):
        if loss < 1:
            supported[loss] = index  # the last one is the fastest
    if not supported:
        return ""
    places = np.unique(np.linspace(0, len(supported) - 1, _MAX_LOSSES).round().astype(int))
    some = [list(supported.items())[place] for place in places]
    shown = ", ".join(f"{_ceiling(loss)} at {candidates[index].selection.latency.mean:.2f} ms" for loss, index in some)
    first = safest(candidates)
    assert first is not None
    assert first.loss is not None  # it is compared
    needed = {loss: queries_for(candidates, loss) for loss in _USUAL_LOSSES}
    whole = sum(report.rows.values()) / report.rows["selection"]
    sizes = ", ".join(
        f"{loss:g} no number"
        if math.isinf(queries)
        else f"{loss:g} about {math.ceil(queries)} ({math.ceil(queries * whole)})"
        for loss, queries in needed.items()
    )
    share = first.loss.discordant
    differs = (
        "" if share is None else f", only one of which and the most accurate level is right on {share:.1%} of them"
    )
    return (
        f"accuracy_loss that the {first.loss.queries} queries of the selection part support with 95 % confidence: "
        f"{shown}; queries that it needs there (rows in all, with the present parts) to support a smaller one for "
        f"'{first.name}', the safest of the faster candidates{differs}: {sizes}"
    )


def _possible_targets(report: SearchReport) -> str:
    """Return the targets of each kind that some candidate meets, on the selection part."""
    best = min(report.candidates, key=lambda each: (-each.selection.score, each.selection.latency.mean))
    fastest = min(report.candidates, key=lambda each: (each.selection.latency.mean, -each.selection.score))
    text = (
        f"possible targets: accuracy up to {_floor(best.selection.score)} ('{best.name}', "
        f"{best.selection.latency.mean:.2f} ms), latency_ms from {_ceiling(fastest.selection.latency.mean)} "
        f"('{fastest.name}', score {fastest.selection.score:.4f})"
    )
    cascades = [each for each in report.candidates if len(each.levels) > 1]
    if not cascades:
        return text
    first = {each.levels[0] for each in cascades}
    alike = [*cascades, *(each for each in report.candidates if len(each.levels) == 1 and each.levels[0] in first)]
    least = min(alike, key=lambda each: (escalation_rate(each.selection), -each.selection.score))
    rate = _ceiling(escalation_rate(least.selection))
    return f"{text}, escalation_rate from {rate} ('{least.name}', score {least.selection.score:.4f})"


def _floor(value: float) -> str:
    """Round down, so that the value can be met as a target."""
    return f"{math.floor(value * 1e4) / 1e4:.4f}"


def _ceiling(value: float) -> str:
    return f"{math.ceil(value * 1e4) / 1e4:.4f}"


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", box=None, pad_edge=False)
    table.padding = (0, 2, 0, 0)
    return table


def _weights(candidate: Candidate) -> Iterator[str]:
    """Yield the ensemble's weights by the number of levels that have run."""
    for weights in candidate.weights[1:]:
        yield f"weights after {len(weights)} levels " + " ".join(f"{each:.2f}" for each in weights)


def _shown_candidates(report: SearchReport) -> list[int]:
    """Return, by latency, single levels, some of the front, the chosen one and the nearest with the other weighting."""
    candidates, best = report.candidates, pareto_front(report.candidates)
    shown = {best[round(place * (len(best) - 1) / (_MAX_SHOWN - 1))] for place in range(_MAX_SHOWN)}
    singles = [index for index, each in enumerate(candidates) if len(each.levels) == 1]
    if report.chosen is None:
        return sorted({*shown, *singles})
    chosen = candidates[report.chosen]
    others = [
        index
        for index, each in enumerate(candidates)
        if each.levels == chosen.levels and each.weighting != chosen.weighting
    ]
    nearest = sorted(others, key=lambda index: _distance(candidates[index], chosen))[:1]
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
