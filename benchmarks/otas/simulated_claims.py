"""Tables and claims of the simulated part."""

from __future__ import annotations

from benchmarks.otas.inputs import GAMMAS
from benchmarks.otas.simulated import (
    COLUMNS,
    FAST_INFAAS,
    INFAAS,
    OTAS,
    PARETO,
    PETS,
    PUBLISHED_INFAAS,
    ComparedPolicies,
    beside_the_paper,
    gamma_rows,
    kept,
    rows,
)
from benchmarks.report import Claim, Report


def add(report: Report, compared: ComparedPolicies) -> None:
    """Add tables and claims of one trace and throughput."""
    report.add_table(compared.title, COLUMNS, rows(compared))
    title = f"{compared.title}: share of executed queries by γ"
    report.add_table(title, ["policy", *map(str, GAMMAS)], gamma_rows(compared))
    report.measured[compared.title] = kept(compared)
    if compared.as_published:
        columns = ["share of the utility offered", "published", "simulated"]
        report.add_table("as published: utility beside the paper's", columns, beside_the_paper(compared))
        case, strong = "as published", "strong"
        _add_claim(report, compared, f"sim_utility_vs_infaas[{case}]", PUBLISHED_INFAAS, 1.7, "+72.5%")
        _add_claim(report, compared, f"sim_utility_vs_infaas[{case}, fast loading]", FAST_INFAAS, 1.7, "+72.5%")
    else:
        case = f"{compared.trace}, {compared.profile}"
        strong = f"strong, {case}"
    paper = "+18.2%" if compared.trace == "synthetic" else "up to +90.1%"
    _add_claim(report, compared, f"sim_utility_vs_pets[{case}]", PETS, 1.18, paper)
    _add_claim(report, compared, f"sim_utility_vs_infaas[{strong}]", INFAAS, 1.2, None)
    report.claims.append(Claim(f"pareto_vs_paper_policy[{case}]", "> 1.0", compared.over(PARETO, OTAS)))


def _add_claim(
    report: Report, compared: ComparedPolicies, name: str, other: str, goal: float, paper: str | None
) -> None:
    """Add what pareto, the policy that serves where none is named, earns over a system."""
    note = f"pareto; paper {compared.over(OTAS, other):.3f}"
    report.claims.append(Claim(name, f">= {goal:.2f}", compared.over(PARETO, other), paper, note))
