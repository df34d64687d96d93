"""Claims of the live part: what pareto has to earn over other systems, given what any policy can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.otas.live.bounds import Bounds
from benchmarks.otas.live.figures import best, oracle_over, ratio, spread
from benchmarks.otas.live.rounds import OtasRun
from benchmarks.otas.live.systems import INFAAS, PAPER, PARETO, PETS, RESIDENT, TOME, VPT
from benchmarks.report import Claim, Report

_FIXED = (PETS, TOME, VPT)
# What is to be earned over γ 0 and over the best fixed γ, and the share of the oracle's ratio that is enough.
_PETS_GOAL, _PETS_SHARE = 1.18, 0.95
_FIXED_GOAL, _FIXED_SHARE = 1.05, 0.97


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio to be reached over a system.

    Attributes:
        claim: Name of the claim, without the load.
        system: System that is compared with.
        least: Lowest ratio that meets the goal.
        oracle: Ratio that the oracle reaches, which no policy exceeds.
    """

    claim: str
    system: str
    least: float
    oracle: float


def goals_at(run: OtasRun, scale: float, bounds: Sequence[Bounds]) -> tuple[Goal, Goal]:
    """Return the goals over γ 0 and over the best of all fixed γ at a load.

    Args:
        run: Results.
        scale: The load.
        bounds: Bounds of the load by round.
    """
    most = [each.most for each in bounds]

    def goal(claim: str, system: str, wanted: float, share: float) -> Goal:
        oracle = oracle_over(run, scale, most, system)
        return Goal(claim, system, min(wanted, share * oracle), oracle)

    nearest = best(run, scale, _FIXED, PARETO)
    return (
        goal("live_utility_vs_pets", PETS, _PETS_GOAL, _PETS_SHARE),
        goal("live_utility_vs_best_fixed", nearest, _FIXED_GOAL, _FIXED_SHARE),
    )


def add(report: Report, run: OtasRun, bounds: Mapping[float, Sequence[Bounds]]) -> None:
    """Add the claims of every load.

    Args:
        report: Report that gets the claims.
        run: Results.
        bounds: Bounds by load and round.
    """
    for scale, by_round in bounds.items():
        pets, fixed = goals_at(run, scale, by_round)
        _add(report, run, scale, pets, "+18.2%", "")
        for system, case in ((INFAAS, f"{scale}"), (RESIDENT, f"{scale}, resident")):
            measured = ratio(run, scale, PARETO, system)
            paper = "+72.5%" if system == INFAAS else None
            note = _note(run, scale, system)
            report.claims.append(Claim(f"live_utility_vs_infaas[{case}]", ">= 1.0", measured, paper, note))
        _add(report, run, scale, fixed, None, f"{fixed.system}, γ {run.gamma(fixed.system, scale)}; ")


def _add(report: Report, run: OtasRun, scale: float, goal: Goal, paper: str | None, prefix: str) -> None:
    measured = ratio(run, scale, PARETO, goal.system)
    note = f"{prefix}oracle {goal.oracle:.3f}; {_note(run, scale, goal.system)}"
    report.claims.append(Claim(f"{goal.claim}[{scale}]", f">= {goal.least:.4f}", measured, paper, note))


def _note(run: OtasRun, scale: float, system: str) -> str:
    """Return how much the ratio varies within the run, and that of the published policy."""
    low, high = spread(run, scale, PARETO, system)
    return f"{low:.2f} to {high:.2f}; paper policy {ratio(run, scale, PAPER, system):.3f}"
