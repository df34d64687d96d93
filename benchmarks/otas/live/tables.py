"""Tables of the live part."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.otas.live.bounds import Bounds
from benchmarks.otas.live.claims import goals_at
from benchmarks.otas.live.figures import median, of_system, oracle_over, ratio, served_accuracies, spread
from benchmarks.otas.live.outcome import INTERVAL_S, OtasOutcome
from benchmarks.otas.live.repository import SIZES
from benchmarks.otas.live.rounds import OtasRun
from benchmarks.otas.live.systems import INFAAS, PAPER, PARETO, SYSTEMS, TOME, VPT
from benchmarks.report import Report

_COLUMNS = [
    "system", "utility", "of all", "right", "wrong", "late", "evicted", "accuracy", "batch", "engine",
    "cores", "others", "loads",
]  # fmt: skip


def add_scale(report: Report, run: OtasRun, scale: float, bounds: Sequence[Bounds]) -> None:
    """Add the tables of all systems at one load.

    Args:
        report: Report that gets the tables.
        run: Results.
        scale: The load.
        bounds: Bounds by round.
    """
    rows = [_row(_named(run, scale, system), of_system(run, scale, system)) for system in SYSTEMS]
    rounds = f"{len(run.rounds)} round{'s' * (len(run.rounds) > 1)}"
    report.add_table(f"live, load {scale:g}: {rounds}{', medians' * (len(run.rounds) > 1)}", _COLUMNS, rows)
    report.add_table(
        f"live, load {scale:g}: pareto, and the oracle that no policy exceeds, over each system; in parts of "
        f"{INTERVAL_S} s",
        ["over", "utility", "pareto", "in parts", "oracle", "goal for pareto"],
        [*_over(run, scale, bounds), *_bounds(run, scale, bounds)],
    )
    _add_gammas(report, run, scale)


def add_accuracies(
    report: Report, run: OtasRun, known: Mapping[str, Mapping[int, float]], gammas: Sequence[int]
) -> None:
    """Add the accuracies by task and γ: those that policies use, and those that clients observed."""
    served = served_accuracies(run)
    rows = []
    for task, by_gamma in known.items():
        rows.append([task, *(f"{by_gamma[gamma]:.1%}" for gamma in gammas)])
        counts = [served.get(task, {}).get(gamma, (0, 0)) for gamma in gammas]
        rows.append(["  as served", *(f"{right / number:.1%}" if number else "-" for number, right in counts)])
        rows.append(["  answers", *(str(number) for number, _ in counts)])
    report.add_table("live: accuracy by γ", ["task", *map(str, gammas)], rows)


def add_sizes(
    report: Report, run: OtasRun, scales: Sequence[float], accuracies: Mapping[str, Mapping[str, float]]
) -> None:
    """Add the model sizes of model switching with their load times.

    Args:
        report: Report that gets the table.
        run: Run with throughputs and load times.
        scales: Factors on the load.
        accuracies: Accuracy by model size and task.
    """
    loadings: dict[str, list[float]] = {model: [] for model in SIZES}
    for scale in scales:
        for outcome in of_system(run, scale, INFAAS):
            for model, seconds in outcome.loadings:
                loadings[model].append(seconds)
    rows = []
    for model, throughput in zip(SIZES, run.throughputs, strict=True):
        took = loadings[model]
        load_s = f"{statistics.median(took):.2f}" if took else "-"
        rows.append(
            [
                SIZES[model],
                f"{throughput:.0f}",
                load_s,
                str(len(took)),
                *(f"{each:.1%}" for each in accuracies[model].values()),
            ]
        )
    tasks = next(iter(accuracies.values()))
    report.add_table("live: sizes to switch between", ["size", "queries/s", "loading, s", "loads", *tasks], rows)


def add_tuning(report: Report, run: OtasRun, scales: Sequence[float]) -> None:
    """Add the table of the choice of the fixed γ."""
    gammas = list(run.tuning[str(scales[0])])

    def shown(scale: float, gamma: int) -> str:
        share = run.tuning[str(scale)][gamma]
        chosen = gamma in (run.gamma(TOME, scale), run.gamma(VPT, scale))
        return "not searched" if share is None else f"{share:.1%}{'*' * chosen}"

    rows = [[f"{scale:g}", *(shown(scale, gamma) for gamma in gammas)] for scale in scales]
    report.add_table(
        "live: utility of fixed γ on another trace (* chosen for that load)", ["load", *map(str, gammas)], rows
    )


def _named(run: OtasRun, scale: float, system: str) -> str:
    return f"{system} ({run.gamma(system, scale)})" if system in (TOME, VPT) else system


def _over(run: OtasRun, scale: float, bounds: Sequence[Bounds]) -> list[list[str]]:
    """Return what pareto and the oracle earn over each other system."""
    goals = {goal.system: goal.least for goal in goals_at(run, scale, bounds)}
    most = [each.most for each in bounds]
    rows = []
    for system in SYSTEMS:
        if system == PARETO:
            continue
        low, high = spread(run, scale, PARETO, system)
        rows.append(
            [
                _named(run, scale, system),
                _number(median(of_system(run, scale, system), lambda each: each.utility), "{:.1f}"),
                f"{ratio(run, scale, PARETO, system):.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{oracle_over(run, scale, most, system):.3f}",
                f">= {goals[system]:.3f}" if system in goals else "-",
            ]
        )
    return rows


def _bounds(run: OtasRun, scale: float, bounds: Sequence[Bounds]) -> list[list[str]]:
    """Return the utility of the oracle, and of every answer in time at its best γ, with what pareto earns over them."""
    earned = [each.utility for each in of_system(run, scale, PARETO)]
    oracle = statistics.median(each.most for each in bounds)

    def share(utilities: Sequence[float]) -> str:
        return f"{statistics.median(ours / other for ours, other in zip(earned, utilities, strict=True)):.3f}"

    best = [each.all_at_best for each in bounds]
    gain = statistics.median(each.gain for each in bounds)
    return [
        ["oracle: knows all arrivals", f"{oracle:.1f}", share([each.most for each in bounds]), "-", "1.000", "-"],
        ["all in time at their best γ", f"{statistics.median(best):.1f}", share(best), "-", "-", "-"],
        ["accuracy(best γ) / accuracy(γ 0)", "-", "-", "-", f"{gain:.3f}", "-"],
    ]


def _row(name: str, outcomes: Sequence[OtasOutcome]) -> list[str]:
    def share(place: int) -> float | None:
        return median(outcomes, lambda each: each.types[place] / each.queries)

    shares = [share(place) for place in range(4)]
    return [
        name,
        _number(median(outcomes, lambda each: each.utility), "{:.1f}"),
        _number(median(outcomes, lambda each: each.utility / each.offered), "{:.1%}"),
        *(_number(share, "{:.1%}") for share in shares),
        _number(median(outcomes, lambda each: each.accuracy), "{:.3f}"),
        _number(median(outcomes, lambda each: each.mean_batch), "{:.1f}"),
        _number(median(outcomes, lambda each: each.busy), "{:.0%}"),
        _number(median(outcomes, lambda each: each.server), "{:.0%}"),
        _number(median(outcomes, lambda each: each.others), "{:.0%}"),
        _number(median(outcomes, lambda each: len(each.loadings)), "{:.0f}"),
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _add_gammas(report: Report, run: OtasRun, scale: float) -> None:
    gammas = sorted(
        {gamma for system in (PARETO, PAPER) for each in of_system(run, scale, system) for gamma in each.gammas}
    )
    rows = []
    for system in (PARETO, PAPER):
        outcomes = of_system(run, scale, system)
        total = sum(sum(each.gammas.values()) for each in outcomes)
        counts = [sum(each.gammas.get(gamma, 0) for each in outcomes) for gamma in gammas]
        rows.append([system, *(f"{count / max(1, total):.1%}" for count in counts)])
    report.add_table(f"live, load {scale:g}: share of answers by γ", ["policy", *map(str, gammas)], rows)
