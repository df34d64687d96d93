"""Figures from the rounds: medians, ratios between systems and to the oracle, and observed accuracies."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict

from benchmarks.otas.live.outcome import OtasOutcome
from benchmarks.otas.live.rounds import OtasRun


def of_system(run: OtasRun, scale: float, system: str) -> list[OtasOutcome]:
    """Return a system's outcomes at a load, by round."""
    return [each.outcomes[str(scale)][system] for each in run.rounds]


def median(outcomes: Sequence[OtasOutcome], figure: Callable[[OtasOutcome], float | None]) -> float | None:
    """Return the median over rounds; None if it was not measured."""
    values = [value for each in outcomes if (value := figure(each)) is not None]
    return statistics.median(values) if values else None


def ratio(run: OtasRun, scale: float, ours: str, theirs: str) -> float:
    """Return the ratio of two systems' utilities for the same queries, as the median of the rounds."""
    pairs = zip(of_system(run, scale, ours), of_system(run, scale, theirs), strict=True)
    return statistics.median(our.utility / their.utility if their.utility else float("inf") for our, their in pairs)


def spread(run: OtasRun, scale: float, ours: str, theirs: str) -> tuple[float, float]:
    """Return the lowest and highest ratio of two systems' utilities in an interval, over all rounds."""
    found = [
        our / their if their else float("inf")
        for one, other in zip(of_system(run, scale, ours), of_system(run, scale, theirs), strict=True)
        for our, their in zip(one.by_interval, other.by_interval, strict=True)
    ]
    return min(found), max(found)


def oracle_over(run: OtasRun, scale: float, most: Sequence[float], system: str) -> float:
    """Return how many times as much as a system the oracle earns with the same queries, as the median of the rounds.

    Args:
        run: Results.
        scale: Load.
        most: Utility that no policy exceeds, by round.
        system: The system.
    """
    outcomes = of_system(run, scale, system)
    return statistics.median(
        bound / each.utility if each.utility else float("inf") for bound, each in zip(most, outcomes, strict=True)
    )


def best(run: OtasRun, scale: float, systems: Sequence[str], ours: str) -> str:
    """Return the system whose utility is closest to that of another one."""
    return min(systems, key=lambda system: ratio(run, scale, ours, system))


def served_accuracies(run: OtasRun) -> dict[str, dict[int, tuple[int, int]]]:
    """Return answers and correct answers by task and γ, over all systems that run one transformer at γ."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for each in run.rounds:
        for by_system in each.outcomes.values():
            for system, outcome in by_system.items():
                if system.startswith("INFaaS"):
                    continue
                for task, by_gamma in outcome.answered.items():
                    of_task = found.setdefault(task, {})
                    for gamma, (number, right) in by_gamma.items():
                        before = of_task.get(int(gamma), (0, 0))
                        of_task[int(gamma)] = (before[0] + number, before[1] + right)
    return found


def kept(run: OtasRun) -> dict[str, object]:
    """Return the content of the JSON."""
    return {
        "throughputs": run.throughputs,
        "tuning": run.tuning,
        "rounds": [
            {
                "capacities": each.capacities,
                "outcomes": {
                    scale: {system: _kept(outcome) for system, outcome in systems.items()}
                    for scale, systems in each.outcomes.items()
                },
            }
            for each in run.rounds
        ],
    }


def _kept(outcome: OtasOutcome) -> dict[str, object]:
    found = asdict(outcome)
    return {**found, "gammas": found.pop("by_gamma"), "accuracy": outcome.accuracy}
