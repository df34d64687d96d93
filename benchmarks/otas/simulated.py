"""Simulate every system under the same traces (Figures 9 to 13)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Literal

from benchmarks.otas.inputs import (
    GAMMAS,
    PROFILES,
    PUBLISHED_OFFERED,
    PUBLISHED_SIZES,
    PUBLISHED_UTILITY,
    VARIANTS,
    PaperProfile,
    Traces,
    variant_seconds,
)
from benchmarks.report import progress
from tidal.otas.policies import FixedPolicy, PaperPolicy, ParetoPolicy
from tidal.simulator.otas import ModelSwitching, ModelVariant, OtasResult, simulate

#: Systems of one γ: PetS leaves tokens unchanged, ToMe merges at every layer, VPT adds prompts.
FIXED = {
    "PetS (0)": 0,
    "ToMe (-10)": -10,
    "ToMe (-15)": -15,
    "ToMe (-20)": -20,
    "VPT (2)": 2,
    "VPT (8)": 8,
}
OTAS, PARETO, PETS = "OTAS (paper)", "OTAS (pareto)", "PetS (0)"
INFAAS, PUBLISHED_INFAAS = "INFaaS", "INFaaS, as published"
FAST_INFAAS = f"{PUBLISHED_INFAAS}, fast loading"


@dataclass(frozen=True, slots=True)
class _Switching:
    """A form of INFaaS.

    Attributes:
        as_table_1: Whether sizes are selected at Table I's rates; else by what they sustain.
        loading: Whether they load in the `assumed` times, in those measured `live`, or in `none`.
    """

    as_table_1: bool
    loading: Literal["assumed", "live", "none"]


#: The utility of INFaaS depends on its rule and on its loading times, of which the paper gives neither.
_SWITCHING = {
    INFAAS: _Switching(as_table_1=False, loading="assumed"),
    f"{INFAAS}, no loading": _Switching(as_table_1=False, loading="none"),
    f"{INFAAS}, live loading": _Switching(as_table_1=False, loading="live"),
    PUBLISHED_INFAAS: _Switching(as_table_1=True, loading="live"),
    FAST_INFAAS: _Switching(as_table_1=True, loading="assumed"),
}


@dataclass(frozen=True)
class ComparedPolicies:
    """Results of one trace with one profile, by system."""

    trace: str
    profile: str
    results: Mapping[str, OtasResult]
    loads: Mapping[str, int]

    @property
    def as_published(self) -> bool:
        """Whether this is the setting that the paper's text and figures imply, see `INFERRED`."""
        return (self.trace, self.profile) == ("synthetic", "table I")

    @property
    def title(self) -> str:
        """Title of the tables."""
        return f"{self.trace} trace, throughput of {self.profile}"

    def over(self, ours: str, theirs: str) -> float:
        """Return the ratio of two systems' utilities."""
        return self.results[ours].utility / self.results[theirs].utility


def compare(traces: Traces, loading_s: Mapping[str, float]) -> list[ComparedPolicies]:
    """Simulate each system under each trace, on all cores.

    Args:
        traces: Arrival traces.
        loading_s: Seconds to load each model size as measured live.
    """
    systems = [OTAS, PARETO, *FIXED, *_SWITCHING]
    cases = [(name, of) for name in traces.all for of in PROFILES]
    jobs = [(name, of, system) for name, of in cases for system in systems]
    found: dict[tuple[str, str, str], _Simulated] = {}
    # A forked process would inherit the state of engine threads.
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        for job, simulated in zip(jobs, pool.map(partial(_simulate, traces, loading_s), jobs), strict=True):
            progress(", ".join(job))
            found[job] = simulated
    return [
        ComparedPolicies(
            name,
            of,
            {system: found[name, of, system].result for system in systems},
            {system: found[name, of, system].loads for system in _SWITCHING},
        )
        for name, of in cases
    ]


@dataclass(frozen=True, slots=True)
class _Simulated:
    """Result of a system, and its number of model loads."""

    result: OtasResult
    loads: int


def _simulate(traces: Traces, loading_s: Mapping[str, float], job: tuple[str, str, str]) -> _Simulated:
    name, of, system = job
    trace, profile = traces.all[name], PROFILES[of]
    if system in _SWITCHING:
        switching = _infaas(profile, _SWITCHING[system], loading_s)
        # Its batches contain their own seconds, including loads.
        result = simulate(switching, switching.profile, trace, lambda batch: batch.seconds)
        return _Simulated(result, switching.loads)
    if system in FIXED:
        return _Simulated(simulate(FixedPolicy(profile, FIXED[system]), profile, trace), 0)
    policy = PaperPolicy(profile) if system == OTAS else ParetoPolicy(profile)
    return _Simulated(simulate(policy, profile, trace), 0)


def _infaas(profile: PaperProfile, form: _Switching, live_s: Mapping[str, float]) -> ModelSwitching:
    """Make model switching with the sizes' ratios to ViT-Base, which is γ 0."""
    scale = profile.latency.throughput(0) / VARIANTS["ViT-Base"].throughput
    variants = [
        ModelVariant(
            each.throughput * scale,
            {"assumed": each.load_s, "live": live_s[name], "none": 0.0}[form.loading],
            each.accuracies,
        )
        for name, each in VARIANTS.items()
    ]
    up_to = PUBLISHED_SIZES if form.as_table_1 else None
    return ModelSwitching(variants, [variant_seconds(each) for each in variants], up_to=up_to)


def beside_the_paper(compared: ComparedPolicies) -> list[list[str]]:
    """Return the share of the offered utility that systems earn, as published and simulated."""
    names = {OTAS: "OTAS", PETS: "PetS", PUBLISHED_INFAAS: "INFaaS", FAST_INFAAS: "INFaaS"}
    found = []
    for system, name in names.items():
        result = compared.results[system]
        published = f"{PUBLISHED_UTILITY[name] / PUBLISHED_OFFERED:.1%}"
        found.append([system, published, f"{result.utility / result.offered:.1%}"])
    return found


def rows(compared: ComparedPolicies) -> list[list[str]]:
    """Return the cells of a table with one row per system."""
    found = []
    for system, result in compared.results.items():
        right, wrong, late, evicted = result.shares
        mean = sum(result.accuracies) / max(len(result.accuracies), 1)
        found.append(
            [
                system,
                f"{result.utility:.0f}",
                f"{result.utility / result.offered:.1%}",
                f"{compared.over(OTAS, system) - 1:+.1%}",
                f"{compared.over(PARETO, system) - 1:+.1%}",
                *(f"{share:.2%}" for share in (right, wrong, late, evicted)),
                f"{mean:.3f}",
                f"{result.busy_s / result.ended:.0%}",
                str(compared.loads.get(system, "-")),
            ]
        )
    return found


COLUMNS = [
    "system", "utility", "of all", "paper's vs it", "pareto's vs it", "right", "wrong", "late", "evicted",
    "batch acc.", "busy", "loads",
]  # fmt: skip


def gamma_rows(compared: ComparedPolicies) -> list[list[str]]:
    """Return the share of queries executed at each γ, for policies that choose γ (Figure 12)."""
    found = []
    for system in (OTAS, PARETO):
        by_gamma = compared.results[system].by_gamma
        total = sum(by_gamma.values())
        found.append([system, *(f"{by_gamma.get(gamma, 0) / total:.1%}" for gamma in GAMMAS)])
    return found


def kept(compared: ComparedPolicies) -> dict[str, object]:
    """Return the content of the JSON."""
    return {
        system: {
            "queries": result.queries,
            "offered": result.offered,
            "utility": result.utility,
            "shares": dict(zip(("right", "wrong", "late", "evicted"), result.shares, strict=True)),
            "by_gamma": {str(gamma): number for gamma, number in sorted(result.by_gamma.items())},
            "batches": result.batches,
            "busy": result.busy_s / result.ended,
            "loads": compared.loads.get(system),
        }
        for system, result in compared.results.items()
    }
