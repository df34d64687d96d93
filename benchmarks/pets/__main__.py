"""`python -m benchmarks.pets [--quick] [--data DIR] [--json FILE]`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.kept import cache_folder
from benchmarks.pets import answers, breakdown, capacity, changes, outcome, peft_batches, plot, strategies, throughput
from benchmarks.pets.full_models import FullModels
from benchmarks.pets.prepare import LONGEST, MODEL, PetsArtefacts, prepare
from benchmarks.pets.systems import PARS, SEQS, forms, write_full, write_tidal
from benchmarks.pets.tasks import DENSE_KINDS, KINDS, random_tasks
from benchmarks.pets.throughput import TIDAL, ThroughputCase, ThroughputOutcome
from benchmarks.pets.waves import WaveShape
from benchmarks.report import Report, progress
from benchmarks.texts import TextMaker
from tidal.pets.kinds.kind import unmergeable_kinds
from tidal.pets.manifest import ENGINE_FOLDER
from tidal.pets.openvino_engine.engine import open_openvino_engine
from tidal.pets.policies.merging import crossover
from tidal.server.child import RunningServer, tidal_serve
from tidal.tasks.folder import tasks_folder

# Suffix of the model that has all tasks of the sweep.
_OF_ALL = "_of_all"
# Forms of full models in a quick run, which does not search.
_QUICK_FORMS = ("seqs", "pars_pool")
_PARS_SHAPES = (WaveShape(16, 1, 16), WaveShape(16, 1, 32), WaveShape(16, 1, 64), WaveShape(16, 2, 32))


@dataclass(frozen=True, slots=True)
class PetsSize:
    """Extent of the measurements.

    Attributes:
        cases: Rounds and seconds of every throughput case.
        tasks: Numbers of tasks in the sweep.
        search_s: Seconds of search for each form of full models.
        batching: Extent of the comparison of batching functions.
        rows: Number of rows that are compared with full models.
        most: Maximum number of labelled queries of each real task.
        changes_s: Seconds in which tasks are added and removed.
        fill: Whether the memory budget is filled, BERT-base is measured, and all forms of full models are searched.
        rounds: Number of rounds of measurements in this process.
    """

    cases: throughput.ThroughputSize
    tasks: tuple[int, ...]
    search_s: float
    batching: strategies.StrategySize
    rows: int
    most: int
    changes_s: float
    fill: bool
    rounds: int


FULL = PetsSize(
    throughput.ThroughputSize(5, 3.0),
    (1, 2, 4, 8, 16, 32, 64, 128),
    6.0,
    strategies.FULL,
    2000,
    100_000,
    20.0,
    True,
    15,
)
QUICK = PetsSize(throughput.ThroughputSize(2, 1.0), (), 0.7, strategies.QUICK, 500, 40, 5.0, False, 4)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases and rounds; under 3 minutes.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with the real tasks' train.tsv.gz and dev.tsv.gz.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write results here, tables and plot beside it.")] = None,
) -> None:
    """Compare one full model for each task with many tasks on one frozen encoder (MiniLM, fp32, OpenVINO)."""
    report = Report("pets", quick)
    size = QUICK if quick else FULL
    artefacts = prepare(data)
    _add_setting(report, artefacts)
    with tempfile.TemporaryDirectory(prefix="pets-repository-", dir=cache_folder()) as folder:
        _served(report, artefacts, Path(folder), size)
    _in_process(report, artefacts, size)
    report.finish(json)
    if json is not None:
        plot.save(report.document(), json.with_suffix(".png"))


def _add_setting(report: Report, artefacts: PetsArtefacts) -> None:
    real = ", ".join(f"{task.name} ({task.kind})" for task in artefacts.real_tasks) or "none (no --data)"
    facts = {
        "artefacts": artefacts.digest,
        "base": "all-MiniLM-L6-v2, real weights; fp32, OpenVINO, "
        f"{artefacts.manifest.threads} threads for every system together",
        "speed and memory": f"random tasks of published sizes (random weights): {', '.join(KINDS)}",
        "answers": f"trained real tasks: {real}",
        "throughput": "one request per task; waves of all tasks, two in flight; every text is sent once; no cache",
    }
    report.measured["setting"] = facts
    report.add_table("setting", ["what", ""], [[name, text] for name, text in facts.items()])


def _served(report: Report, artefacts: PetsArtefacts, repository: Path, size: PetsSize) -> None:
    """Measure through a server."""
    dense = [task.task for task in random_tasks(32, DENSE_KINDS)]
    every = [task.task for task in random_tasks(max(32, *size.tasks) if size.tasks else 32)]
    places = [artefacts.random / task for task in dict.fromkeys([*every, *dense])]
    real = [artefacts.real / task.task for task in artefacts.real_tasks]
    write_tidal(repository, artefacts, [*places, *real])
    tried = forms(len(os.sched_getaffinity(0)))
    if not size.fill:
        tried = {name: tried[name] for name in _QUICK_FORMS}
    asked = {SEQS: [artefacts.random / task for task in dict.fromkeys([*every[:32], *dense])], PARS: places[:16]}
    for name, form in tried.items():
        write_full(repository, name, form, artefacts, asked[form.system])
        if size.tasks and form.system == SEQS:
            write_full(repository, f"{name}{_OF_ALL}", form, artefacts, places)
    maker = TextMaker(artefacts.version / artefacts.manifest.tokenizer.file, seed=2)
    progress("starting tidal serve")
    with tidal_serve(repository, "--model", MODEL) as server:
        best, rows = throughput.fastest_forms(server, tried, every, maker, size.search_s)
        outcome.add_forms(report, rows, best)
        outcomes = _throughput(server, best, dense, every, maker, size)
        outcome.add_throughput(report, outcomes)
        outcome.add_throughput_claims(report, outcomes)
        _add_crossover(report, artefacts, outcomes)
        progress(f"comparing {size.rows} served rows with full models")
        texts = [maker.text(length) for length in range(8, LONGEST + 1)] * 2
        held_to = [*places[: 32 if size.fill else 16], *real]
        same = answers.measure_agreement(server, MODEL, artefacts, held_to, texts, size.rows)
        accuracies = answers.measure_accuracy(server, MODEL, artefacts, size.most) if real else []
        outcome.add_answers(report, same, accuracies)
        progress("adding and removing tasks under load")
        plan = changes.ChangePlan(MODEL, tasks_folder(repository / MODEL), every[:16], places[16:24], size.changes_s)
        outcome.add_changes(report, changes.measure(server, plan, artefacts.base, maker))


def _throughput(
    server: RunningServer,
    best: dict[str, str],
    dense: Sequence[str],
    every: Sequence[str],
    maker: TextMaker,
    size: PetsSize,
) -> list[ThroughputOutcome]:
    progress(f"loading {best[SEQS]} with full models of all tasks of a wave")
    server.control.load(best[SEQS], None)
    against = {TIDAL: MODEL, SEQS: best[SEQS]}
    cases = [
        ThroughputCase("dense,16", tuple(dense), WaveShape(32, 1, 16), against),
        ThroughputCase("all,16", tuple(every), WaveShape(32, 1, 16), against),
        ThroughputCase("all,32", tuple(every), WaveShape(32, 1, 32), against),
    ]
    if size.tasks:
        cases += [ThroughputCase("lengths", tuple(every), WaveShape(32, 1, length), against) for length in (64, 128)]
        cases += [
            ThroughputCase("queries of a task", tuple(every), WaveShape(32, batch, 32), against) for batch in (2, 4)
        ]
    outcomes = [throughput.measure(server, case, maker, size.cases) for case in cases]
    server.control.unload(best[SEQS])
    if size.tasks:
        of_all = f"{best[SEQS]}{_OF_ALL}"
        progress(f"loading {of_all} with full models of all tasks")
        server.control.load(of_all, None)
        against = {TIDAL: MODEL, SEQS: of_all}
        swept = [ThroughputCase("tasks", tuple(every), WaveShape(tasks, 1, 32), against) for tasks in size.tasks]
        outcomes += [throughput.measure(server, case, maker, size.cases) for case in swept]
        server.control.unload(of_all)
    progress(f"loading {best[PARS]} with full models of 16 tasks")
    server.control.load(best[PARS], None)
    pars = [ThroughputCase(PARS, tuple(every), shape, {TIDAL: MODEL, PARS: best[PARS]}) for shape in _PARS_SHAPES]
    outcomes += [throughput.measure(server, case, maker, size.cases) for case in pars]
    server.control.unload(best[PARS])
    return outcomes


def _add_crossover(report: Report, artefacts: PetsArtefacts, outcomes: Sequence[ThroughputOutcome]) -> None:
    """Add the number of tasks from which sharing is faster: measured, and by Inequality 1 on the profile."""
    tables = artefacts.manifest.profile.tables()
    predicted = {
        length: crossover(tables, KINDS, queries=1, length=length, most_tasks=32, unmergeable=unmergeable_kinds())
        for length in (16, 32, 64)
    }
    report.measured["crossover"] = {"measured, 32 tokens": outcome.crossover(outcomes), "predicted": predicted}
    print(f"number of tasks from which sharing is faster than merged copies, by Inequality 1: {predicted}")
    if any(each.case.name == "tasks" for each in outcomes):
        print(f"measured against full models, 32 tokens: {outcome.crossover(outcomes)}")


def _in_process(report: Report, artefacts: PetsArtefacts, size: PetsSize) -> None:
    """Measure on the engine in this process."""
    held = [capacity.measure_minilm(artefacts, fill=size.fill)]
    if size.fill:
        held.append(capacity.measure_bert_base(artefacts))
    outcome.add_capacity(report, held)
    threads = artefacts.manifest.threads
    engine = open_openvino_engine(artefacts.version / ENGINE_FOLDER, threads=threads)
    profile = artefacts.manifest.profile
    executed, tuned = strategies.compare(engine, artefacts.base, profile.tables(), profile.spread_tokens, size.batching)
    outcome.add_strategies(report, executed, tuned)
    progress("breakdown of a pass, and mixed batches of LoRA")
    models = FullModels(artefacts.full, artefacts.base)
    times = breakdown.time_split(engine, artefacts.base, models, threads, size.rounds)
    first = held[0]
    memories = breakdown.memory_split(
        engine, first.tasks.shared, first.tasks.mean, first.full.mean, (1, 8, 32, 64, 128, 512)
    )
    outcome.add_splits(report, times, memories)
    missing = peft_batches.why_not()
    lengths = (16, 32) if size.fill else (16,)
    found = missing or peft_batches.measure(engine, artefacts.base, lengths, threads, size.rounds)
    outcome.add_peft(report, found)


if __name__ == "__main__":
    typer.run(main)
