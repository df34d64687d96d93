"""Measures all planned cases not kept yet: the systems of a case alternate, round after round."""

from __future__ import annotations

from benchmarks.flover.bench import FloverBench
from benchmarks.flover.kept_run import FloverRun
from benchmarks.flover.plan import FloverCase, MeasurementPlan
from benchmarks.flover.systems import LABELS, PEERS
from benchmarks.report import progress


def measure(bench: FloverBench, run: FloverRun, plan: MeasurementPlan) -> None:
    """Measure all rounds of all cases; a peer that fails is recorded as missing, and left out from then on."""
    for round_index in range(plan.size.rounds):
        for number, case in enumerate(plan.cases(round_index)):
            of_case = run.outcomes.setdefault(case.name, {})
            order = list(case.systems)
            shift = (round_index + number) % len(order)  # so that each system goes first in some round
            for system in order[shift:] + order[:shift]:
                rounds = of_case.setdefault(system, [])
                if len(rounds) > round_index:
                    continue
                progress(f"round {round_index + 1} of {plan.size.rounds}, {case.name}: {system}")
                if system in PEERS:
                    _try(bench, run, case, system)
                else:
                    rounds.append(bench.run(case.systems[system], case.load))
                run.save()


def _try(bench: FloverBench, run: FloverRun, case: FloverCase, peer: str) -> None:
    """Measure a peer; its failure must not end the run."""
    try:
        run.outcomes[case.name][peer].append(bench.run(case.systems[peer], case.load))
    except Exception as error:
        reason = f"{case.name}: {' '.join(str(error).split())[:300] or type(error).__name__}"
        progress(f"{LABELS[peer]} failed and is left out from now on: {reason}")
        run.drop(peer, reason)
        bench.unload(peer)
