"""Tables and claims of the live part."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.otas.live.figures import best, median, of_system, ratio, served_accuracies
from benchmarks.otas.live.outcome import OtasOutcome
from benchmarks.otas.live.repository import SIZES
from benchmarks.otas.live.rounds import OtasRun
from benchmarks.otas.live.systems import INFAAS, PAPER, PARETO, PETS, RESIDENT, SYSTEMS, TOME, VPT
from benchmarks.report import Claim, Report

_PAPER = {PETS: "+18.2%", INFAAS: "+72.5%"}
_COLUMNS = [
    "system", "utility", "of all", "pareto's vs it", "right", "wrong", "late", "evicted", "accuracy", "batch", "engine",
    "cores", "others", "loads",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a load by the accuracies that policies use: the highest utility of any policy, that with time for the
    best γ of all queries, and accuracy(best γ) / accuracy(γ 0)."""

    most: float
    all_at_best: float
    gain: float


def add_scale(report: Report, run: OtasRun, scale: float, bounds: Bounds) -> None:
    """Add the table of all systems at one load."""
    rows = []
    for system in SYSTEMS:
        outcomes = of_system(run, scale, system)
        gamma = run.gamma(system, scale)
        rows.append(
            _row(
                f"{system} ({gamma})" if system in (TOME, VPT) else system, outcomes, ratio(run, scale, PARETO, system)
            )
        )
    rounds = f"{len(run.rounds)} round{'s' * (len(run.rounds) > 1)}, medians"
    report.add_table(f"live, load {scale:g}: {rounds}", _COLUMNS, rows)
    pareto = statistics.median(each.utility for each in of_system(run, scale, PARETO))
    pets = statistics.median(each.utility for each in of_system(run, scale, PETS))
    report.add_table(
        f"live, load {scale:g}: bounds by the accuracies that policies go by, first round's queries",
        ["what", "utility", "over PetS", "pareto's share"],
        [
            ["oracle: no policy earns more, whatever it knows", *_bound(bounds.most, pets, pareto)],
            ["every answer in time and at its best γ", *_bound(bounds.all_at_best, pets, pareto)],
            ["accuracy(best γ) over accuracy(γ 0)", "", f"{bounds.gain:.3f}", ""],
        ],
    )
    _add_gammas(report, run, scale)


def add_claims(report: Report, run: OtasRun, scales: Sequence[float]) -> None:
    """Add the claims of the live part."""
    for scale in scales:
        report.claims.append(
            Claim(
                f"live_utility_vs_pets[{scale}]",
                ">= 1.18",
                ratio(run, scale, PARETO, PETS),
                _PAPER[PETS],
                _policy(run, scale, PETS),
            )
        )
        for system, case in ((INFAAS, f"{scale}"), (RESIDENT, f"{scale}, resident")):
            paper = _PAPER[INFAAS] if system == INFAAS else None
            measured = ratio(run, scale, PARETO, system)
            report.claims.append(
                Claim(f"live_utility_vs_infaas[{case}]", ">= 1.0", measured, paper, _policy(run, scale, system))
            )
        nearest = best(run, scale, (PETS, TOME, VPT), PARETO)
        measured = ratio(run, scale, PARETO, nearest)
        note = f"{nearest}, γ {run.gamma(nearest, scale)}; {_policy(run, scale, nearest)}"
        report.claims.append(Claim(f"live_utility_vs_best_fixed[{scale}]", ">= 1.05", measured, note=note))


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


def _row(name: str, outcomes: Sequence[OtasOutcome], over: float) -> list[str]:
    def share(place: int) -> float | None:
        return median(outcomes, lambda each: each.types[place] / each.queries)

    shares = [share(place) for place in range(4)]
    return [
        name,
        _number(median(outcomes, lambda each: each.utility), "{:.1f}"),
        _number(median(outcomes, lambda each: each.utility / each.offered), "{:.1%}"),
        f"{over - 1:+.1%}",
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


def _bound(utility: float, pets: float, pareto: float) -> list[str]:
    return [f"{utility:.1f}", f"{utility / pets:.3f}", f"{pareto / utility:.1%}"]


def _policy(run: OtasRun, scale: float, system: str) -> str:
    """Return a figure of the published policy."""
    return f"paper policy {ratio(run, scale, PAPER, system):.3f}"


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
