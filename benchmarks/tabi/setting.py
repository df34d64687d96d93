"""Tables about the setting: data, models, method, levels, and the chosen candidates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from benchmarks.report import Report
from benchmarks.tabi.artefacts import TaskArtefacts
from benchmarks.tabi.packing import PackingFactor
from benchmarks.tabi.rounds import LOAD, TabiSize
from benchmarks.tabi.train import LAYERS
from benchmarks.tabi.variants import SLACK, break_even
from tidal.tabi.manifest import TabiManifest


def add_setting(report: Report, artefacts: Sequence[TaskArtefacts], size: TabiSize) -> None:
    """Report data, models and method.

    Args:
        report: Report to extend.
        artefacts: Artefacts of all tasks.
        size: Size of the benchmark.
    """
    layers = ", ".join(f"{name} {count}" for name, count in LAYERS.items())
    facts = {
        "models": f"all-MiniLM-L6-v2's first layers, fine-tuned: {layers}; fp32, OpenVINO",
        **{each.task.name: _sizes(each) for each in artefacts},
        "target": f"the large model's accuracy on the selection part minus {SLACK:.1%}; dev is only reported on",
        "alone": f"{size.rounds} rounds of up to {size.queries} dev queries, each after the previous answer; "
        "gRPC and tokenisation included",
        "draws": "a query has one request id for all systems, and another one in each round",
        "together": f"{size.rounds} rounds of {size.requests} queries, Poisson, "
        f"{LOAD:.0%} of the large model's capacity",
        "caches": "off",
    }
    report.measured["setting"] = facts
    report.add_table("setting", ["setting", ""], [[name, text] for name, text in facts.items()])


def add_levels(report: Report, artefacts: TaskArtefacts, packings: Mapping[str, PackingFactor]) -> None:
    """Report the calibration and packing of a task's levels.

    Args:
        report: Report to extend.
        artefacts: Artefacts of the task.
        packings: Packing factors by level.
    """
    rows, found = [], {}
    for level in artefacts.manifest.levels:
        training = json.loads((artefacts.folder / "models" / level.name / "training.json").read_text())
        calibration, packing = level.calibration, packings[level.name]
        slowdown = ", ".join(f"{count}: {value:.2f}" for count, value in packing.slowdown.items() if count > 1)
        rows.append(
            [
                level.name,
                f"{training['held_out_accuracy']:.2%}",
                f"{calibration.temperature:.2f}",
                "-" if calibration.ece_before is None else f"{calibration.ece_before:.3f}",
                "-" if calibration.ece_after is None else f"{calibration.ece_after:.3f}",
                str(packing.factor),
                slowdown,
            ]
        )
        found[level.name] = {**training, "temperature": calibration.temperature, "pf": packing.factor}
    columns = ["level", "held-out accuracy", "T", "ECE before", "after", "Pf", "slowdown by copies"]
    report.add_table(f"{artefacts.task.name}: levels", columns, rows)
    report.measured.setdefault("levels", {})[artefacts.task.name] = found


def add_choices(report: Report, task: str, fronts: Mapping[str, TabiManifest], whole: TabiManifest) -> None:
    """Report each system's parameters, and up to which target a single model is the fastest.

    Args:
        report: Report to extend.
        task: Name of the task.
        fronts: Manifests by system.
        whole: Manifest with all candidates.
    """
    rows = []
    for system, manifest in fronts.items():
        candidate = manifest.candidates[manifest.chosen]
        rows.append(
            [
                system,
                "+".join(manifest.levels[level].name for level in candidate.levels),
                *(
                    "-" if value is None else f"{value:g}"
                    for value in (candidate.cutoff, candidate.slope, candidate.pruning)
                ),
                ", ".join(f"{weight:.2f}" for weight in candidate.weights[-1]),
                candidate.weighting or "-",
            ]
        )
    report.add_table(f"{task}: candidates", ["system", "levels", "c", "k", "α", "w", "weighting"], rows)
    even = break_even(whole)
    if all(len(each.levels) == 1 for each in whole.candidates):
        text = "the builder kept no cascade"
    elif even is None:
        text = "at every target that a cascade meets, a cascade is the fastest candidate"
    else:
        text = f"at targets up to {even[0]:.2%} (selection part) the single model {even[1].name} is the fastest"
    print(f"{task}: {text} (§7.5)")
    report.measured.setdefault("break_even", {})[task] = None if even is None else even[0]


def _sizes(artefacts: TaskArtefacts) -> str:
    split = artefacts.split
    counts = f"{len(split.train)} queries trained on, {len(split.held_out)} held out, {len(split.dev)} dev"
    return f"{counts}; artefacts {artefacts.digest}"
