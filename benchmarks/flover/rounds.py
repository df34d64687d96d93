"""Measuring what is planned and not kept yet: systems of a case in turns, round after round."""

from __future__ import annotations

from benchmarks.flover.bench import Bench
from benchmarks.flover.kept_run import Run
from benchmarks.flover.plan import Case, Plan
from benchmarks.flover.systems import LABELS, PEERS
from benchmarks.report import progress


def measure(bench: Bench, run: Run, plan: Plan) -> None:
    """Measure all rounds of all cases; a peer that fails is noted as missing, and left out from then on."""
    for turn in range(plan.size.rounds):
        for number, case in enumerate(plan.cases(turn)):
            of_case = run.outcomes.setdefault(case.name, {})
            order = list(case.systems)
            shift = (turn + number) % len(order)  # everybody goes first at some time
            for system in order[shift:] + order[:shift]:
                rounds = of_case.setdefault(system, [])
                if len(rounds) > turn:
                    continue
                progress(f"round {turn + 1} of {plan.size.rounds}, {case.name}: {system}")
                if system in PEERS:
                    _try(bench, run, case, system)
                else:
                    rounds.append(bench.run(case.systems[system], case.load))
                run.save()


def _try(bench: Bench, run: Run, case: Case, peer: str) -> None:
    """Measure what is not ours: that it fails must not end a run."""
    try:
        run.outcomes[case.name][peer].append(bench.run(case.systems[peer], case.load))
    except Exception as error:
        reason = f"{case.name}: {' '.join(str(error).split())[:300] or type(error).__name__}"
        progress(f"{LABELS[peer]} fails, and is left out from now on: {reason}")
        run.drop(peer, reason)
        bench.unload(peer)
