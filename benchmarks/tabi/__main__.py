"""`python -m benchmarks.tabi --data DIR [--quick] [--json FILE]`."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.kept import cache_folder, kept_file
from benchmarks.report import Report, progress
from benchmarks.tabi import (
    claims,
    early_routing,
    equality,
    figures,
    importance,
    offline,
    outcome,
    packing,
    plot,
    setting,
    sized_case,
)
from benchmarks.tabi.artefacts import TaskArtefacts
from benchmarks.tabi.early_routing import RoutedShare
from benchmarks.tabi.importance import ImportanceCost
from benchmarks.tabi.outcome import TaskOutcome
from benchmarks.tabi.packing import PackingFactor
from benchmarks.tabi.prepare import prepare
from benchmarks.tabi.repository import LARGE_PADDED, ServedModels, load, unload, write_repository
from benchmarks.tabi.rounds import FULL, QUICK, TabiSize, measure_task
from benchmarks.tabi.sized_case import SizedOutcome
from benchmarks.tabi.sized_levels import facts, prepare_sized, sized_artefacts
from benchmarks.tabi.sweeps import QUICK_SCALES, SCALES, PrunedWords, SweepPoint, Sweeps
from benchmarks.tabi.tasks import TaskQueries
from benchmarks.tabi.variants import (
    LARGE,
    MIDDLE,
    NO_ARLO,
    NO_PRUNING,
    SMALL,
    TABI,
    TWO_LEVELS,
    TargetChoice,
    choose,
    fronts,
)
from benchmarks.tabi.voting import VotingEnsemble, find_ensemble
from testing.cascades import OpenLevel
from tidal.manifest import MANIFEST_FILE
from tidal.server.child import RunningServer, tidal_serve
from tidal.tabi.manifest import TabiManifest

# Number of queries on which the cost of importance is measured.
_TEXTS = 300


@dataclass(slots=True)
class TabiFindings:
    """Results of all tasks, for the tables over tasks; by task."""

    outcomes: list[TaskOutcome] = field(default_factory=list)
    dispatch: dict[str, figures.DispatcherQuality] = field(default_factory=dict)
    bounds: dict[str, figures.LatencyBound] = field(default_factory=dict)
    cutoffs: dict[str, list[SweepPoint]] = field(default_factory=dict)
    scales: dict[str, list[SweepPoint]] = field(default_factory=dict)
    pruned: dict[str, list[PrunedWords]] = field(default_factory=dict)
    importance: dict[str, ImportanceCost] = field(default_factory=dict)
    dispatchers: dict[str, list[SweepPoint]] = field(default_factory=dict)
    early: dict[str, list[RoutedShare]] = field(default_factory=dict)
    ensembles: dict[str, tuple[float, float]] = field(default_factory=dict)
    engines: dict[str, float] = field(default_factory=dict)
    packings: dict[str, PackingFactor] = field(default_factory=dict)  # the last task's
    sized: list[SizedOutcome] = field(default_factory=list)


def main(
    data: Annotated[Path, typer.Option(help="Folder with the tasks' train.tsv.gz and dev.tsv.gz.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer queries and systems; under 3 minutes.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write results here, tables and plot beside it.")] = None,
) -> None:
    """Compare ways to reach a large classifier's accuracy: single models, voting, Tabi with and without its parts."""
    report = Report("tabi", quick)
    artefacts = prepare(data)
    larger = _sized(artefacts, quick=quick)
    size = QUICK if quick else FULL
    setting.add_setting(report, artefacts, size)
    manifests = [each.version(each.task.name) / MANIFEST_FILE for each in artefacts]
    found = TabiFindings()
    kept = []
    with tempfile.TemporaryDirectory(prefix="tabi-repository-", dir=cache_folder()) as folder:
        repository = Path(folder)
        choices = [choose(each.manifest) for each in artefacts]
        planned = []
        for each, choice in zip(artefacts, choices, strict=True):
            systems = _planned(fronts(each.manifest, choice), quick=quick)
            planned.append((systems, write_repository(repository, each, systems)))
        plans = {task: sized_case.plan(repository, each) for task, each in larger.items()}
        progress("starting tidal serve")
        with tidal_serve(repository, "--model", artefacts[0].manifest.levels[0].model) as server:
            for each, choice, (systems, served) in zip(artefacts, choices, planned, strict=True):
                progress(f"loading {each.task.name}")
                for models in served.load_order:
                    load(server, models)
                kept.append(kept_file("tabi-run", quick, each.task.name, files=manifests))
                _task(report, found, server, each, choice, systems, served, size, kept[-1])
                unload(server, served)
                if each.task.name in plans:
                    trained = found.outcomes[-1].run
                    own = sized_case.QUICK if quick else sized_case.FULL
                    done, file = sized_case.measure(server, plans[each.task.name], trained, own, quick=quick)
                    found.sized.append(done)
                    kept.append(file)
    outcome.add_open_loop(report, found.outcomes)
    outcome.add_dispatch(report, found.dispatch)
    outcome.add_bounds(report, found.bounds, found.engines)
    outcome.add_points(report, "cut-off c (Figure 8), engines alone", found.cutoffs)
    outcome.add_points(report, "pruning scale α (Figure 9), the last level's engine on re-routed queries", found.scales)
    outcome.add_pruned_words(report, found.pruned)
    if found.importance:
        outcome.add_importance(report, found.importance)
    outcome.add_points(report, "other dispatchers, engines alone", found.dispatchers)
    early_routing.add_comparison(report, found.early)
    rows = [[task, f"{single:.2%}", f"{both:.2%}"] for task, (single, both) in found.ensembles.items()]
    report.add_table("the ensemble (§7.3.4) on re-routed queries", ["task", "last level", "ensemble"], rows)
    for name in ("dispatch", "bounds", "importance"):
        report.measured[name] = {task: asdict(each) for task, each in getattr(found, name).items()}
    for name in ("cutoffs", "scales", "pruned", "dispatchers", "early"):
        report.measured[name] = {task: [asdict(p) for p in points] for task, points in getattr(found, name).items()}
    report.measured["ensembles"] = found.ensembles
    report.measured["engines"] = found.engines
    claims.add_claims(report, found.outcomes)
    if found.sized:
        sized_case.add_tables(report, found.sized)
        report.measured["sized"] = {each.task: sized_case.measured(each) for each in found.sized}
        claims.add_sized_claims(report, found.sized)
    report.finish(json)
    if json is not None:
        plot.save(report.document(), json.with_suffix(".png"))
    for file in kept:
        file.unlink()


def _sized(artefacts: list[TaskArtefacts], *, quick: bool) -> dict[str, TaskArtefacts]:
    """Return the larger levels by task: of all tasks, prepared if needed; in a quick run the first prepared ones."""
    if not quick:
        return {each.task.name: prepare_sized(each) for each in artefacts}
    ready = [each for each in artefacts if facts(sized_artefacts(each)) is not None]
    return {each.task.name: sized_artefacts(each) for each in ready[:1]}


def _planned(systems: dict[str, TabiManifest], *, quick: bool) -> dict[str, TabiManifest]:
    """Return the systems to measure; quick runs leave out the cascade's variants."""
    return {name: each for name, each in systems.items() if not quick or name in (TABI, TWO_LEVELS)}


def _task(
    report: Report,
    found: TabiFindings,
    server: RunningServer,
    artefacts: TaskArtefacts,
    choice: TargetChoice,
    systems: dict[str, TabiManifest],
    served: ServedModels,
    size: TabiSize,
    kept: Path,
) -> None:
    task, manifest = artefacts.task.name, artefacts.manifest
    crowds = [LARGE, *(name for name in (TABI, TWO_LEVELS, NO_PRUNING, NO_ARLO) if name in systems)]
    run = measure_task(server, artefacts, served, set(systems), crowds, size, kept)
    progress(f"{task}: opening its levels in this process")
    levels = [OpenLevel(artefacts.level_version(n), level.order) for n, level in enumerate(manifest.levels)]
    dev = artefacts.split.dev
    sample = dev.at(list(range(min(size.offline, len(dev)))))
    # A quick run uses the first task's: levels have the same size in all tasks.
    packings = found.packings = (size is QUICK and found.packings) or _packings(artefacts, levels, size)
    ensemble = _ensemble(artefacts, levels, size)
    progress(f"{task}: comparing routes with the offline ones")
    rows = np.random.default_rng(1).choice(len(dev), size.equality).tolist()
    version = int(artefacts.version(task).name)
    cascade = TWO_LEVELS if TWO_LEVELS in systems else TABI
    equal = equality.measure(server, served.models[cascade], version, systems[cascade], levels, dev, rows)
    known = {name: figures.single_figures(run, name, dev.truth, packings[name]) for name in (SMALL, MIDDLE, LARGE)}
    if LARGE_PADDED in served.models:
        known[LARGE_PADDED] = figures.single_figures(run, LARGE_PADDED, dev.truth, packings[LARGE])
    if ensemble is not None:
        known[figures.COCKTAIL] = figures.ensemble_figures(run, ensemble, dev.truth, packings)
    for name, each in systems.items():
        known[name] = figures.cascade_figures(run, name, dev.truth, each, packings)
    single = manifest.levels[choice.single.levels[0]].name
    done = TaskOutcome(task, run, dev.truth, single, known, ensemble, equal)
    found.outcomes.append(done)
    setting.add_levels(report, artefacts, packings)
    setting.add_choices(report, task, systems, manifest)
    outcome.add_systems(report, done)
    report.measured.setdefault("tasks", {})[task] = outcome.measured(done)
    if ensemble is None or not ensemble.equal:
        print(f"{task}: no ensemble of the smaller models is as accurate as the large one on held-out queries")
    if choice.two_levels is None:
        print(f"{task}: no cascade of two levels meets the target of {choice.target:.2%}; its parts are not measured")
        return
    _parts(found, done, manifest, choice, systems, sample, levels, quick=size is QUICK)
    held_out = artefacts.split.held_out.at(list(range(min(size.held_out, len(artefacts.split.held_out)))))
    progress(f"{task}: early router")
    found.early[task] = early_routing.collect_routes(manifest, choice.two_levels, levels, held_out, sample).compared()
    first = choice.two_levels.levels[0]
    if size is not QUICK and manifest.levels[first].attention:
        found.importance[task] = importance.measure(artefacts, first, levels[first], sample.texts[:_TEXTS])


def _parts(
    found: TabiFindings,
    done: TaskOutcome,
    manifest: TabiManifest,
    choice: TargetChoice,
    systems: dict[str, TabiManifest],
    sample: TaskQueries,
    levels: list[OpenLevel],
    *,
    quick: bool,
) -> None:
    """Measure the parts of the cascade of two levels."""
    two = choice.two_levels
    assert two is not None
    system = TWO_LEVELS if TWO_LEVELS in systems else TABI
    small, first = manifest.levels[two.levels[0]].name, two.levels[0] + 1
    found.dispatch[done.name] = figures.dispatch(done.run, system, small, first, done.truth)
    found.bounds[done.name] = figures.bound(done.run, system, small, first, done.truth)
    progress(f"{done.name}: sweeps")
    sweeps = Sweeps(manifest, two, levels, sample)
    found.cutoffs[done.name] = sweeps.cutoffs()
    found.scales[done.name] = sweeps.scales(QUICK_SCALES if quick else SCALES)
    found.pruned[done.name] = sweeps.pruned_words()
    found.dispatchers[done.name] = sweeps.dispatchers()
    found.ensembles[done.name] = sweeps.ensemble_gain()
    found.engines[done.name] = sweeps.engines_ratio()


def _packings(artefacts: TaskArtefacts, levels: list[OpenLevel], size: TabiSize) -> dict[str, PackingFactor]:
    progress(f"{artefacts.task.name}: packing factors")
    queries = [levels[0].read(texts) for texts in artefacts.split.dev.texts[:50]]
    return {
        level.name: packing.measure(artefacts.level_version(number), queries, seconds=size.packing_s)
        for number, level in enumerate(artefacts.manifest.levels)
    }


def _ensemble(artefacts: TaskArtefacts, levels: list[OpenLevel], size: TabiSize) -> VotingEnsemble | None:
    """Return the voting ensemble, chosen on held-out queries."""
    manifest, held_out = artefacts.manifest, artefacts.split.held_out
    progress(f"{artefacts.task.name}: running the levels on held-out queries")
    sample = held_out.at(list(range(min(size.held_out, len(held_out)))))
    answers = {}
    # The small model is the fastest, whatever the order of their scores.
    for number in sorted(range(len(levels)), key=lambda level: manifest.levels[level].latency.mean):
        _, outputs = offline.tokens_and_outputs(levels[number], sample)
        answers[manifest.levels[number].name] = [manifest.labels[index] for index in outputs.logits.argmax(axis=1)]
    return find_ensemble(answers, sample.truth, LARGE)


if __name__ == "__main__":
    typer.run(main)
