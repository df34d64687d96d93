"""Adds tables of the measurements, and claims about them, to the report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from benchmarks.pets import strategies
from benchmarks.pets.answers import Accuracy, Agreement
from benchmarks.pets.breakdown import MemorySplit, TimeSplit
from benchmarks.pets.capacity import BUDGET, Capacity
from benchmarks.pets.changes import Changes
from benchmarks.pets.peft_batches import MixedBatch
from benchmarks.pets.strategies import Executed
from benchmarks.pets.systems import PARS, SEQS
from benchmarks.pets.throughput import TIDAL, ThroughputOutcome
from benchmarks.report import Claim, Report

_MIB = 1 << 20
# Goal and published value of a claim, by case.
_THROUGHPUT = {
    "dense,16": (1.8, "1.53-1.63 (GPUs)"),
    "all,16": (1.5, "1.53-1.63 (GPUs)"),
    "all,32": (1.25, "1.53-1.63 (GPUs)"),
}


def add_throughput(report: Report, outcomes: Sequence[ThroughputOutcome]) -> None:
    """Add a table of all cases."""
    rows = []
    for outcome in outcomes:
        for system in outcome.found:
            over = "" if system == TIDAL else f"{outcome.ratio(system):.2f}"
            rows.append(
                [
                    outcome.case.name,
                    str(outcome.case.shape),
                    system,
                    f"{outcome.per_second(system):.0f}",
                    f"{outcome.latency(system, 50):.0f}",
                    f"{outcome.latency(system, 99):.0f}",
                    over,
                ]
            )
    columns = ["case", "tasks x queries", "system", "1/s", "p50 ms", "p99 ms", "PetS / it"]
    report.add_table("throughput through the server, two waves in flight", columns, rows)
    report.measured["throughput"] = {
        f"{outcome.case.name} ({outcome.case.shape})": {
            system: {
                "per_second": [each.per_second for each in results],
                "p50_ms": outcome.latency(system, 50),
                "p99_ms": outcome.latency(system, 99),
                "model": outcome.case.models[system],
            }
            for system, results in outcome.found.items()
        }
        for outcome in outcomes
    }


def add_throughput_claims(report: Report, outcomes: Sequence[ThroughputOutcome]) -> None:
    """Add the claims against SeqS, one per case, and against ParS, the mean over the cases of 16 tasks."""
    by_name = {outcome.case.name: outcome for outcome in outcomes}
    for case, (goal, paper) in _THROUGHPUT.items():
        if case in by_name:
            outcome = by_name[case]
            note = f"{outcome.case.shape}; {outcome.per_second(TIDAL):.0f} against {outcome.per_second(SEQS):.0f}/s"
            ratio = outcome.ratio(SEQS)
            report.claims.append(Claim(f"throughput_vs_seqs[{case}]", f">= {goal}", ratio, paper=paper, note=note))
    pars = [each for each in outcomes if each.case.name == "ParS" and PARS in each.found]
    if pars:
        note = "16 tasks, mean of " + ", ".join(f"{each.case.shape.batch} x {each.case.shape.length}" for each in pars)
        mean = statistics.mean(each.ratio(PARS) for each in pars)
        report.claims.append(Claim("throughput_vs_pars[16]", ">= 1.18", mean, paper="1.177", note=note))


def crossover(outcomes: Sequence[ThroughputOutcome]) -> int | None:
    """Return the number of tasks from which a shared pass is faster than full models; None if it never is."""
    sweep = {each.case.shape.tasks: each.ratio(SEQS) for each in outcomes if each.case.name == "tasks"}
    found = None
    for tasks in sorted(sweep, reverse=True):
        if sweep[tasks] <= 1:
            break
        found = tasks
    return found


def add_strategies(report: Report, found: Sequence[Executed], tuned: int) -> None:
    """Add the speeds of the batching functions, measured and predicted, and the claims."""
    cells: dict[tuple[str, int, float], list[Executed]] = {}
    for each in found:
        cells.setdefault((each.batching, each.tasks, each.spread), []).append(each)
    pools = sorted({key[1:] for key in cells})
    rows = []
    for name in dict.fromkeys(each.batching for each in found):
        of_way = [cells[name, *pool] for pool in pools]
        seconds = [sum(each.seconds for each in cell) for cell in of_way]
        predicted = [sum(each.predicted for each in cell) for cell in of_way]
        fixed = [sum(each.seconds for each in cells[strategies.FIXED, *pool]) for pool in pools]
        rows.append(
            [
                f"{name} ({strategies.FIXED_SIZE if name == strategies.FIXED else tuned})" if "fixed" in name else name,
                *(f"{a / b:.2f}" for a, b in zip(fixed, seconds, strict=True)),
                f"{np.mean([a / b for a, b in zip(predicted, seconds, strict=True)]):.2f}",
                f"{1e3 * np.mean([each.planning for cell in of_way for each in cell]):.0f}",
            ]
        )
    columns = ["batching", *(f"{tasks} tasks, ±{spread:g}" for tasks, spread in pools), "predicted/measured", "plan ms"]
    report.add_table(f"batching mixed lengths and kinds: speed over batches of {strategies.FIXED_SIZE}", columns, rows)
    report.measured["batching"] = [asdict(each) for each in found]
    report.measured["tuned_fixed_size"] = tuned
    served, printed = strategies.SERVED, strategies.PRINTED
    ratios = {way: strategies.speedup(found, way, strategies.FIXED, 32) for way in (served, printed)}
    padded = strategies.speedup(found, served, strategies.PADDED, 32)
    note = f"32 tasks; as served ({served}); as printed {ratios[printed]:.2f}; over padded batches {padded:.2f}"
    report.claims.append(Claim("cb_vs_fixed[32]", ">= 1.25", ratios[served], paper="1.52", note=note))
    tuned_ratio = strategies.speedup(found, served, strategies.TUNED)
    note = f"batches of {tuned}; as printed {strategies.speedup(found, printed, strategies.TUNED):.2f}"
    report.claims.append(Claim("cb_vs_tuned_fixed", "> 1.0", tuned_ratio, note=note))
    widest = max(each.spread for each in found)
    packed = strategies.speedup(found, strategies.FIXED, strategies.PADDED, spread=widest)
    note = f"batches of {strategies.FIXED_SIZE} as they arrive; with both, the same products, attention and terms"
    report.claims.append(Claim(f"packed_vs_padded[σ={widest:g}]", ">= 1.3", packed, note=note))
    of_served = [each for each in found if each.batching == served]
    ratio = sum(each.predicted for each in of_served) / sum(each.seconds for each in of_served)
    report.claims.append(Claim("predicted_vs_measured", ">= 0.95", ratio, note=f"as served ({served}), all pools"))


def add_capacity(report: Report, found: Sequence[Capacity]) -> None:
    """Add the capacities of all bases; the claim is about the first."""
    rows = []
    for each in found:
        kinds = ", ".join(f"{kind} {size / _MIB:.2f}" for kind, size in each.tasks.each.items())
        rows.append(
            [
                each.base,
                "counted" if each.counted else "extrapolated from measured bytes",
                f"{each.tasks.shared / _MIB:.0f}",
                f"{each.tasks.mean / _MIB:.2f}",
                f"{each.full.mean / _MIB:.0f}",
                f"{each.tasks.capacity(BUDGET):.0f}",
                f"{each.full.capacity(BUDGET):.0f}",
                f"{each.ratio:.1f}",
            ]
        )
        print(f"{each.base}: MiB per task: {kinds}")
    columns = ["base", "how", "base MiB", "task MiB", "full MiB", "tasks in 2 GiB", "full models", "ratio"]
    report.add_table("capacity: memory of a separate process (PSS), the kinds in turns", columns, rows)
    report.measured["capacity"] = [asdict(each) for each in found]
    first = found[0]
    note = f"{first.base}, {'counted' if first.counted else 'extrapolated'}; " + ", ".join(
        f"{each.base} {each.ratio:.0f}" for each in found[1:]
    )
    survived = first.tasks.survived and first.full.survived
    claim = Claim("max_tasks_vs_seqs", ">= 35", first.ratio if survived else 0.0, paper="25-26 (V100)", note=note)
    report.claims.append(claim)


def add_splits(report: Report, times: Sequence[TimeSplit], memories: Sequence[MemorySplit]) -> None:
    """Add the tables of Figures 9 and 10."""
    rows = [
        [f"{each.batch} x {each.length} tokens", f"{each.together:.1f}", f"{each.shared:.1f}", f"{each.own:.1%}",
         f"{each.full:.1f}", f"{each.full / each.together:.2f}", f"{each.full / each.shared:.2f}"]
        for each in times
    ]  # fmt: skip
    columns = ["8 tasks", "pass ms", "base ms", "tasks' share", "full models ms", "speed-up", "without the tasks"]
    report.add_table("time of a pass (Figure 9; published share of the tasks: 27.4 to 41.3 %)", columns, rows)
    rows = [
        [str(each.tasks), *(f"{size / _MIB:.0f}" for size in (each.shared, each.own, each.data, each.full))]
        for each in memories
    ]
    columns = ["tasks", "base MiB", "tasks MiB", "activations MiB (computed)", "full models MiB"]
    report.add_table("memory, one query of 128 tokens per task (Figure 10), from measured bytes", columns, rows)
    report.measured["time_split"] = [{**asdict(each), "own": each.own} for each in times]
    report.measured["memory_split"] = [asdict(each) for each in memories]


def add_peft(report: Report, found: Sequence[MixedBatch] | str) -> None:
    """Add the table of mixed LoRA batches, or the reason why it was not measured."""
    if isinstance(found, str):
        print(f"peft's mixed batches were not measured: {found}")
        report.measured["peft"] = found
        return
    rows = [
        [f"{each.tasks} x 1, {each.length} tokens", f"{each.peft:.1f}", f"{each.tidal:.1f}",
         f"{each.peft / each.tidal:.2f}", f"{each.error:.1e}"]
        for each in found
    ]  # fmt: skip
    columns = ["LoRA tasks", "peft ms", "Tidal ms", "speed-up", "max difference"]
    report.add_table("mixed batches of LoRA in one process, fp32", columns, rows)
    report.measured["peft"] = [asdict(each) for each in found]


def add_answers(report: Report, rows: Agreement, accuracies: Sequence[Accuracy]) -> None:
    """Add agreement and accuracies, with their claims."""
    report.measured["agreement"] = asdict(rows)
    note = (
        f"{rows.rows} rows; {rows.mixed:.0f} batches of more than 8 tasks, mean {rows.mean_tasks:.1f}; "
        f"max error {rows.error:.1e}"
    )
    report.claims.append(Claim("row_agreement", ">= 0.999", rows.same, note=note))
    report.claims.append(Claim("row_agreement_mixed_batches", ">= 1", rows.mixed))
    if not accuracies:
        return
    table = [
        [each.task, each.kind, str(each.rows), f"{each.served:.2%}", f"{each.offline:.2%}", f"{each.same:.2%}",
         f"{each.stored_bytes / 1024:.0f}"]
        for each in accuracies
    ]  # fmt: skip
    columns = ["task", "kind", "rows", "served", "offline", "same label", "stored KiB"]
    report.add_table("real tasks: accuracy through the server, in mixed batches, and of merged models", columns, table)
    report.measured["accuracy"] = [asdict(each) for each in accuracies]
    worst = max(abs(each.served - each.offline) for each in accuracies)
    note = f"{len(accuracies)} real tasks of {len({each.kind for each in accuracies})} kinds"
    report.claims.append(Claim("accuracy_served_vs_offline", "<= 0.001", worst, note=note))


def add_changes(report: Report, found: Changes) -> None:
    """Add the failures while tasks were added and removed, with the claim."""
    report.measured["changes"] = asdict(found)
    note = f"{found.sent} requests while {found.added} tasks were added and {found.removed} removed"
    claim = Claim("failed_during_task_changes", "== 0", found.failed, note=f"{note} {found.first_error}".strip())
    report.claims.append(claim)


def add_forms(report: Report, rows: Sequence[Sequence[str]], best: Mapping[str, str]) -> None:
    """Add the table of the searched forms of the baselines."""
    columns = ["system", "form", "tasks", "1/s", "MiB", "chosen"]
    report.add_table(
        "search of the form of full models: one query per task, 16 tokens", columns, [list(row) for row in rows]
    )
    report.measured["forms"] = dict(best)
