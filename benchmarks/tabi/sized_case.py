"""The comparison of a cascade with its large level where both have the paper's relative cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.kept import kept_file
from benchmarks.report import Report, progress
from benchmarks.tabi import figures
from benchmarks.tabi.artefacts import TaskArtefacts
from benchmarks.tabi.outcome import mean_ms, p99_ms
from benchmarks.tabi.repository import ServedModels, load, unload, write_repository
from benchmarks.tabi.rounds import TabiSize, TaskRun, measure_task
from benchmarks.tabi.serial import SerialResult
from benchmarks.tabi.sized import SIZES
from benchmarks.tabi.sized_levels import SizedLevel, facts
from benchmarks.tabi.statistics import paired_difference
from benchmarks.tabi.variants import LARGE, NO_PRUNING, SMALL, TABI, choose, fronts
from tidal.manifest import MANIFEST_FILE
from tidal.server.child import RunningServer

# A query of the large level takes some 60 ms in bf16 on two cores.
FULL = TabiSize(rounds=3, queries=100, requests=200, capacity_s=4, offline=0, held_out=0, equality=0, packing_s=0)
QUICK = TabiSize(rounds=1, queries=20, requests=20, capacity_s=1, offline=0, held_out=0, equality=0, packing_s=0)


@dataclass(frozen=True, slots=True)
class SizedPlan:
    """What is served of a task: artefacts of its larger levels, and their models by system."""

    artefacts: TaskArtefacts
    served: ServedModels
    cascades: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SizedOutcome:
    """Results of a task with levels of the paper's relative cost.

    Attributes:
        task: Name of the task.
        run: Rounds of the task.
        truth: Labels of the dev split.
        levels: Facts of the levels.
        engine_ms: Mean latency of each level's engine alone, one query at a time, milliseconds.
        same_labels: Share of the dev queries with the label that the trained level gave, by level.
    """

    task: str
    run: TaskRun
    truth: Sequence[str]
    levels: Mapping[str, SizedLevel]
    engine_ms: Mapping[str, float]
    same_labels: Mapping[str, float]

    @property
    def cost_ratio(self) -> float:
        """Time of the large level's engine over that of the small one's."""
        return self.engine_ms[LARGE] / self.engine_ms[SMALL]

    @property
    def disagreement(self) -> float:
        """Share of the dev queries to which the two levels give different labels."""
        return 1 - _same_labels(self.run.serial, SMALL, self.run.serial, LARGE)


def plan(repository: Path, artefacts: TaskArtefacts) -> SizedPlan:
    """Add a task's larger levels and the cascade to a repository.

    Args:
        repository: Repository on the artefacts' file system.
        artefacts: Artefacts from `prepare_sized`.
    """
    manifest = artefacts.manifest
    variants = fronts(manifest, choose(manifest))
    kept = {name: variants[name] for name in (TABI, NO_PRUNING) if name in variants}
    return SizedPlan(artefacts, write_repository(repository, artefacts, kept), tuple(kept))


def measure(
    server: RunningServer, planned: SizedPlan, trained: TaskRun, size: TabiSize, *, quick: bool
) -> tuple[SizedOutcome, Path]:
    """Load a task's larger levels, measure its rounds, and unload them.

    Args:
        server: Running server.
        planned: Plan of the task.
        trained: Rounds of the task with the trained levels themselves.
        size: Size of the comparison.
        quick: Whether this is a quick run.

    Returns:
        The results, and the file that stores the rounds.
    """
    artefacts = planned.artefacts
    name = artefacts.task.name
    progress(f"loading {name}")
    for models in planned.served.load_order:
        load(server, models)
    kept = kept_file("tabi-run", quick, name, files=[artefacts.version(name) / MANIFEST_FILE])
    run = measure_task(server, artefacts, planned.served, set(planned.cascades), [LARGE, TABI], size, kept)
    unload(server, planned.served)
    levels = facts(artefacts)
    assert levels is not None
    outcome = SizedOutcome(
        name.removesuffix("_sized"),
        run,
        artefacts.split.dev.truth,
        levels,
        {level.name: level.latency.mean for level in artefacts.manifest.levels},
        {level: _same_labels(run.serial, level, trained.serial, level) for level in levels},
    )
    return outcome, kept


def add_tables(report: Report, outcomes: Sequence[SizedOutcome]) -> None:
    """Report the levels, and the systems one query at a time and under Poisson arrivals.

    Args:
        report: Report to extend.
        outcomes: Results of the tasks.
    """
    rows = [
        [
            each.task,
            level,
            f"{SIZES[level].num_hidden_layers} x {SIZES[level].hidden_size}",
            f"{found.parameters / 1e6:.0f} M",
            f"{found.linear_layers}/{SIZES[level].linear_layers}",
            f"{found.max_abs_error:.1e}",
            f"{each.same_labels[level]:.2%}",
            f"{each.engine_ms[level]:.2f}",
            f"{each.engine_ms[level] / each.engine_ms[SMALL]:.2f}",
            f"{each.disagreement:.1%}",
        ]
        for each in outcomes
        for level, found in each.levels.items()
    ]
    # linear: linear layers of the compiled model, of those that a BERT of this size has; |Δ|: of logits, in float32;
    # same label: as the trained level in float32; disagree: share of queries with different labels of the two levels.
    columns = ["task", "level", "size", "weights", "linear", "|Δ|", "same label", "engine ms", "/ small", "disagree"]
    report.add_table("sized levels: the trained levels' functions at the paper's relative cost", columns, rows)
    rows = [_system(each, system) for each in outcomes for system in each.run.serial[0]]
    columns = [
        "task",
        "system",
        "accuracy",
        "vs large (95 %)",
        "mean ms",
        "p99",
        "mean / large",
        "p99 / large",
        "early",
    ]
    report.add_table("sized levels: one query at a time", columns, rows)
    rows = []
    for each in outcomes:
        for system in each.run.crowd[0]:
            cells = [found[system] for found in each.run.crowd]
            pooled = np.concatenate([cell.latencies_ms for cell in cells])
            offered = np.median([cell.offered for cell in cells])
            failed = sum(sum(cell.errors.values()) for cell in cells)
            p50, p99 = np.percentile(pooled, (50, 99))
            rows.append(
                [
                    each.task,
                    system,
                    f"{offered:.1f}",
                    *(f"{value:.1f}" for value in (pooled.mean(), p50, p99)),
                    str(failed),
                ]
            )
    columns = ["task", "system", "offered 1/s", "mean ms", "p50", "p99", "failed"]
    report.add_table("sized levels: Poisson arrivals at 70% of the large level's capacity", columns, rows)


def measured(outcome: SizedOutcome) -> dict[str, object]:
    """Return a task's figures for the JSON.

    Args:
        outcome: Results of the task.
    """
    run, systems = outcome.run, outcome.run.serial[0]
    return {
        "levels": {level: asdict(found) for level, found in outcome.levels.items()},
        "engine_ms": dict(outcome.engine_ms),
        "cost_ratio": outcome.cost_ratio,
        "disagreement": outcome.disagreement,
        "same_labels": dict(outcome.same_labels),
        "capacities": run.capacities,
        "mean_vs_large": {system: figures.ratios(run, system, LARGE, mean_ms) for system in systems},
        "p99_vs_large": {system: figures.ratios(run, system, LARGE, p99_ms) for system in systems},
        "poisson_mean_vs_large": figures.open_loop_ratios(run, TABI, LARGE, None),
        "poisson_p99_vs_large": figures.open_loop_ratios(run, TABI, LARGE, 99),
        "accuracy": {system: float(np.mean(list(_right(outcome, system).values()))) for system in systems},
    }


def _system(outcome: SizedOutcome, system: str) -> list[str]:
    cells = [each[system] for each in outcome.run.serial]
    large = [each[LARGE] for each in outcome.run.serial]
    right = _right(outcome, system)
    pooled, theirs = (np.concatenate([cell.latencies_ms for cell in group]) for group in (cells, large))
    mean, p99, mean_large, p99_large = (of(ms) for ms in (pooled, theirs) for of in (np.mean, _p99))
    levels = np.concatenate([cell.levels for cell in cells])
    return [
        outcome.task,
        system,
        f"{np.mean(list(right.values())):.2%}",
        str(paired_difference(right, _right(outcome, LARGE))),
        f"{mean:.2f}",
        f"{p99:.2f}",
        f"{mean / mean_large:.2f}",
        f"{p99 / p99_large:.2f}",
        f"{np.mean(levels == 1):.1%}" if levels.any() else "-",
    ]


def _p99(latencies_ms: npt.NDArray[np.float64]) -> np.float64:
    return np.float64(np.percentile(latencies_ms, 99))


def _right(outcome: SizedOutcome, system: str) -> dict[int, float]:
    return figures.accuracies([each[system] for each in outcome.run.serial], outcome.truth)


def _same_labels(
    ours: Sequence[Mapping[str, SerialResult]], system: str, theirs: Sequence[Mapping[str, SerialResult]], other: str
) -> float:
    """Return the share of the common queries with equal labels of two systems; each query counts once."""
    first, second = (
        {row: label for each in rounds for row, label in zip(each[name].queries, each[name].labels, strict=True)}
        for rounds, name in ((ours, system), (theirs, other))
    )
    common = first.keys() & second.keys()
    return float(np.mean([first[row] == second[row] for row in common])) if common else float("nan")
