"""Live part: serve, measure and report."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.kept import kept_file
from benchmarks.otas.live import claims, figures, tables, traces
from benchmarks.otas.live.artefacts import BASE, OtasArtefacts
from benchmarks.otas.live.bounds import Bounds, adaptation_gain, expected_utilities, most_earned
from benchmarks.otas.live.load import OtasLoad, types_of
from benchmarks.otas.live.outcome import INTERVAL_S
from benchmarks.otas.live.repository import (
    PAPER_MODEL,
    PARETO_MODEL,
    SIZES,
    fixed_model,
    version_of,
    write_repository,
)
from benchmarks.otas.live.rounds import OtasRounds, OtasRun, OtasSize
from benchmarks.otas.live.sending import sending
from benchmarks.otas.live.systems import OtasBench
from benchmarks.report import Report, progress
from tidal.manifest import MANIFEST_FILE
from tidal.otas.manifest import OtasManifest, load_otas_manifest
from tidal.otas.tasks import load_task
from tidal.server.child import tidal_serve
from tidal.tasks.folder import tasks_folder

Accuracies = dict[str, dict[int, float]]


def measure(report: Report, artefacts: OtasArtefacts, size: OtasSize) -> Path:
    """Compare OTAS with other systems that serve the same images, on a server.

    Args:
        report: Report that gets tables, claims and measurements.
        artefacts: Artefacts to serve.
        size: Extent of the measurement.

    Returns:
        File of the measurements, to be removed when the report has been written.
    """
    version = version_of(artefacts.repository, BASE)
    manifest = load_otas_manifest(version)
    accuracies = _accuracies(artefacts, BASE)
    types = types_of({task: by_gamma[0] for task, by_gamma in accuracies.items()})
    of_sizes = {model: _accuracies(artefacts, built) for model, built in SIZES.items()}
    at_zero = {model: {task: by_gamma[0] for task, by_gamma in each.items()} for model, each in of_sizes.items()}
    switched = sizes_to_switch({model: fmean(each.values()) for model, each in at_zero.items()})
    _add_setting(report, artefacts, manifest, size, switched)
    files = [version_of(artefacts.repository, model) / MANIFEST_FILE for model in SIZES.values()]
    files.append(traces.FILE)
    kept = kept_file("otas-live-run", size, artefacts.digest, files=files)
    with tempfile.TemporaryDirectory(prefix="otas-repository-", dir=artefacts.folder) as folder:
        write_repository(Path(folder), artefacts.repository)
        progress("starting tidal serve")
        there = [part for model in (PARETO_MODEL, PAPER_MODEL, fixed_model(0)) for part in ("--model", model)]
        with tidal_serve(Path(folder), *there) as server, sending(server) as sender:
            roughly = manifest.profile.throughput(0)
            rounds = OtasRounds(
                OtasBench(server, sender, switched), types, artefacts.tasks, manifest.gammas, size, roughly, kept
            )
            run = rounds.run()
    bounds = {scale: _bounds_at(scale, run, rounds, manifest, accuracies) for scale in size.scales}
    _add_capacities(report, run, size)
    tables.add_tuning(report, run, size.scales)
    for scale in size.scales:
        tables.add_scale(report, run, scale, bounds[scale])
    tables.add_sizes(report, run, size.scales, at_zero)
    tables.add_accuracies(report, run, accuracies, manifest.gammas)
    claims.add(report, run, bounds)
    report.measured["live"] = figures.kept(run) | {
        "oracle": {str(scale): [each.most for each in by_round] for scale, by_round in bounds.items()}
    }
    return kept


def _add_capacities(report: Report, run: OtasRun, size: OtasSize) -> None:
    rows = [
        [f"round {turn}", *(f"{each.capacities[str(scale)]:.1f}" for scale in size.scales)]
        for turn, each in enumerate(run.rounds, 1)
    ]
    columns = ["", *(f"load {scale:g}" for scale in size.scales)]
    report.add_table("live: queries a second that γ 0 answers, before each load", columns, rows)


def _bounds_at(
    scale: float, run: OtasRun, rounds: OtasRounds, manifest: OtasManifest, accuracies: Accuracies
) -> list[Bounds]:
    """Return the bounds at a load by round."""
    progress(f"bounds at load {scale:g}")
    return [
        _bounds(rounds.measured_load(run, turn, scale), manifest, accuracies, each.capacities[str(scale)])
        for turn, each in enumerate(run.rounds)
    ]


def _bounds(load: OtasLoad, manifest: OtasManifest, accuracies: Accuracies, capacity: float) -> Bounds:
    """Compute bounds with the profile's ratios between γ, scaled to the measured throughput of γ 0."""
    gammas = list(manifest.gammas)
    earns = expected_utilities(load, accuracies, gammas)
    profile = manifest.profile
    seconds = np.array([profile.throughput(0) / profile.throughput(gamma) / capacity for gamma in gammas])
    all_at_best = float(earns[load.kinds].max(axis=1).sum())
    return Bounds(most_earned(load, earns, seconds), all_at_best, adaptation_gain(load, earns, gammas.index(0)))


def _accuracies(artefacts: OtasArtefacts, model: str) -> Accuracies:
    """Return the accuracies of a model by task and γ, as policies read them."""
    version = version_of(artefacts.repository, model)
    manifest, folder = load_otas_manifest(version), tasks_folder(version.parent)
    return {task.name: dict(load_task(folder, task.name, manifest).accuracy) for task in artefacts.tasks}


def sizes_to_switch(accuracies: Mapping[str, float]) -> tuple[str, ...]:
    """Return the models, from fast to slow, that are more accurate than all faster ones."""
    kept: list[str] = []
    for model, accuracy in accuracies.items():
        if all(accuracy > accuracies[faster] for faster in kept):
            kept.append(model)
    return tuple(kept)


def _add_setting(
    report: Report, artefacts: OtasArtefacts, manifest: OtasManifest, size: OtasSize, switched: tuple[str, ...]
) -> None:
    tasks = ", ".join(f"{task.name} ({len(task.images)} images)" for task in artefacts.tasks)
    facts = {
        "artefacts": artefacts.digest,
        "transformer": f"{manifest.source.architecture}, {manifest.layers} layers of {manifest.width}, "
        f"{manifest.tokens} tokens, {manifest.engine} {manifest.precision}, {manifest.threads} threads, "
        f"γ {', '.join(map(str, manifest.gammas))}",
        "tasks": f"{tasks}; seen by neither training nor profiling; a run takes each once as far as they go",
        "queries": "Table II's six types, the least accurate task as CIFAR100; a query is an encoded image over gRPC",
        "load": f"Poisson, {size.seconds} s at the rates of live/traces.json; a load of 1 has the mean {traces.MEAN}, "
        f"the minimum {traces.LEAST} and the maximum {traces.MOST} times what γ 0 answers as served",
        "fixed γ": f"the best of each sign on another trace of {traces.TUNING_S} s, for each load"
        if size.searched
        else "those nearest to 0, not searched",
        "parts": f"ratios by the {INTERVAL_S} s in which queries arrived show how much they vary within a run",
        "INFaaS": "the simulation's rule, once a second; Triton loads the next size, then unloads the one before; "
        f"switches between {', '.join(switched)}: sizes that are slower and no more accurate are left out",
        "outcomes": "by the client's clock, from the time a query should have been sent",
    }
    report.measured["live setting"] = facts
    report.add_table("live: setting", ["what", ""], [[name, text] for name, text in facts.items()])
