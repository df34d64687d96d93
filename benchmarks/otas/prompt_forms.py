"""Compare prompts that are replaced at every layer (VPT-deep) with prompts that stay for all later layers.

OTAS defines γ as the change of the number of tokens per layer, and its figures for 32 prompts fit accumulating tokens;
VPT, which it follows, replaces them. Both are trained in the same way here, on the same digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from benchmarks.otas.live.artefacts import BASE, OtasArtefacts
from benchmarks.otas.prepare import ACCUMULATED, forms_repository
from benchmarks.otas.recipe import DIGITS
from benchmarks.report import Report, progress
from tidal.engine_model.model import Array
from tidal.otas.manifest import OtasManifest, load_otas_manifest
from tidal.otas.runner import OtasRunner, open_runner
from tidal.otas.tasks import load_task
from tidal.repository.entries import ModelEntry
from tidal.tasks.folder import tasks_folder
from tidal_builders.timing import measure

REPLACED_FORM, ACCUMULATED_FORM = "replaced", "accumulated"
_BATCH, _ROUNDS = 16, 20
#: The task that both are trained for.
TASK = DIGITS


@dataclass(frozen=True, slots=True)
class PromptForm:
    """One form at a γ: tokens of its last layer, milliseconds per image in batches of 16, and accuracy."""

    form: str
    gamma: int
    tokens: int
    image_ms: float
    accuracy: float


def compare(artefacts: OtasArtefacts) -> list[PromptForm]:
    """Measure both forms in the same rounds; accuracies are those measured after the task's training."""
    progress("both forms of prompts")
    entries = {
        REPLACED_FORM: ModelEntry(artefacts.repository / BASE),
        ACCUMULATED_FORM: ModelEntry(forms_repository(artefacts.folder) / ACCUMULATED),
    }
    calls, found = {}, {}
    for form, entry in entries.items():
        version = entry.latest()
        assert version is not None
        manifest = load_otas_manifest(version)
        runner = open_runner(manifest, version)
        found[form] = manifest, load_task(tasks_folder(entry.folder), TASK, manifest)
        for gamma in manifest.gammas:
            if gamma >= 0:
                calls[form, gamma] = _call(runner, manifest, gamma)
    timings = measure(calls, rounds=_ROUNDS, budget_s=20)
    forms = []
    for form, gamma in calls:
        manifest, task = found[form]
        last = gamma * manifest.layers if manifest.accumulate else gamma
        milliseconds = timings[form, gamma].median_ms / _BATCH
        forms.append(PromptForm(form, gamma, manifest.tokens + last, milliseconds, task.accuracy[gamma]))
    return forms


def add(report: Report, forms: Sequence[PromptForm]) -> None:
    """Add the table."""
    rows = [
        [each.form, str(each.gamma), str(each.tokens), f"{each.image_ms:.3f}", f"{each.accuracy:.1%}"]
        for each in sorted(forms, key=lambda each: each.gamma)
    ]
    title = f"prompts that are replaced at every layer, or accumulate ({TASK})"
    report.add_table(title, ["form", "γ", "tokens at last", "ms an image", "right"], rows)
    report.measured["prompt_forms"] = [asdict(each) for each in forms]


def _call(runner: OtasRunner, manifest: OtasManifest, gamma: int) -> partial[object]:
    draw = np.random.default_rng(0)
    pixels = draw.standard_normal((_BATCH, *manifest.image.shape), np.float32)
    shape = manifest.prompt_shape(gamma)
    prompts = None if shape is None else draw.standard_normal((_BATCH, *shape), np.float32)
    return partial(_run, runner, gamma, pixels, prompts)


def _run(runner: OtasRunner, gamma: int, pixels: Array, prompts: Array | None, _worker: int) -> object:
    return runner.run(gamma, pixels, prompts)
