"""The claims of the report over all tasks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.report import Claim, Report
from benchmarks.tabi import figures
from benchmarks.tabi.outcome import TaskOutcome, mean_ms, p99_ms
from benchmarks.tabi.sized_case import SizedOutcome
from benchmarks.tabi.statistics import BootstrapInterval, resampled
from benchmarks.tabi.variants import EXACT, LARGE, NO_PRUNING, TABI


def add_claims(report: Report, outcomes: Sequence[TaskOutcome]) -> None:
    """Add the claims about the candidate that is chosen for the target.

    Args:
        report: Report to extend.
        outcomes: Results of all tasks.
    """
    for outcome in outcomes:
        found = figures.ratios(outcome.run, TABI, LARGE, mean_ms)
        note = f"rounds {min(found):.2f}-{max(found):.2f}; {_exact_note(outcome)}"
        name = f"mean_vs_large[{outcome.name}]"
        report.claims.append(Claim(name, "<= 0.75", statistics.median(found), paper="0.60-0.79", note=note))
    gap = pooled_gap(outcomes)
    note = f"95 %: {gap.low:+.4f} to {gap.high:+.4f}; every query of every task counts once"
    report.claims.append(Claim("accuracy_gap[pooled]", "<= 0.01", gap.value, paper="within 0.01", note=note))
    crowds = {each.name: figures.open_loop_ratios(each.run, TABI, LARGE, 99) for each in outcomes}
    _worst(report, "p99_vs_large[poisson70]", "<= 1.0", crowds)
    alone = {each.name: figures.ratios(each.run, TABI, LARGE, p99_ms) for each in outcomes}
    _worst(report, "p99_vs_large[unloaded]", "<= 1.25", alone, paper="about 1")
    for outcome in outcomes:
        # An ensemble that is less accurate is not an alternative: its row shows its accuracy.
        if outcome.ensemble is not None and outcome.ensemble.equal:
            slowest = outcome.ensemble.members[-1]
            found = figures.ratios(outcome.run, TABI, slowest, mean_ms)
            note = f"against {'+'.join(outcome.ensemble.members)}, charged {slowest} alone"
            name = f"mean_vs_cocktail[{outcome.name}]"
            report.claims.append(Claim(name, "<= 0.89", statistics.median(found), paper="0.74-0.89", note=note))
    queries = sum(each.equality.queries for each in outcomes)
    equal = sum(each.equality.equal for each in outcomes)
    error = max(each.equality.max_abs_error for each in outcomes)
    note = f"{queries} queries, levels, labels and words read; probabilities differ by {error:.1e} at most"
    report.claims.append(Claim("route_equality", "== 1.0", equal / queries, note=note))


def add_sized_claims(report: Report, outcomes: Sequence[SizedOutcome]) -> None:
    """Add the claims about levels of the paper's relative cost.

    Args:
        report: Report to extend.
        outcomes: Results of the tasks that are prepared.
    """
    for outcome in outcomes:
        found = figures.ratios(outcome.run, TABI, LARGE, mean_ms)
        note = (
            f"rounds {min(found):.2f}-{max(found):.2f}; cost ratio {outcome.cost_ratio:.2f} (paper: 3.7-4.1), "
            f"disagreement {outcome.disagreement:.1%}"
        )
        name = f"mean_vs_large[{outcome.task}, sized]"
        report.claims.append(Claim(name, "<= 0.70", statistics.median(found), paper="0.60-0.79", note=note))
    for outcome in outcomes:
        crowd = statistics.median(figures.open_loop_ratios(outcome.run, TABI, LARGE, 99))
        alone = {
            system: statistics.median(figures.ratios(outcome.run, system, LARGE, p99_ms))
            for system in (TABI, NO_PRUNING)
            if system in outcome.run.serial[0]
        }
        note = "Poisson, 70 %; unloaded: " + ", ".join(f"{system} {value:.2f}" for system, value in alone.items())
        name = f"p99_vs_large[{outcome.task}, sized]"
        report.claims.append(Claim(name, "<= 1.05", crowd, paper="about 1, unloaded", note=note))


def pooled_gap(outcomes: Sequence[TaskOutcome]) -> BootstrapInterval:
    """Return the large model's accuracy minus Tabi's over the queries of all tasks.

    Args:
        outcomes: Results of all tasks.
    """
    differences = []
    for outcome in outcomes:
        large, ours = (
            figures.accuracies([each[system] for each in outcome.run.serial], outcome.truth) for system in (LARGE, TABI)
        )
        differences += [large[query] - ours[query] for query in sorted(large)]
    return resampled(np.array(differences))


def _worst(
    report: Report, name: str, goal: str, found: Mapping[str, Sequence[float]], paper: str | None = None
) -> None:
    """Add a claim over all tasks: the worst of their medians over rounds."""
    medians = {task: statistics.median(each) for task, each in found.items()}
    note = "the worst of " + ", ".join(f"{task} {value:.2f}" for task, value in medians.items())
    report.claims.append(Claim(name, goal, max(medians.values()), paper=paper, note=note))


def _exact_note(outcome: TaskOutcome) -> str:
    """Return the latency of the candidate that is as accurate as the large model on the selection part."""
    system = EXACT if EXACT in outcome.systems else TABI
    ratio = statistics.median(figures.ratios(outcome.run, system, LARGE, mean_ms))
    return f"at the large model's accuracy {ratio:.2f}"
