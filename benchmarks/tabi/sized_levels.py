"""Levels of the paper's relative cost: the trained levels' functions in models as large as BERT-base and BERT-large."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.report import progress
from benchmarks.tabi import sized
from benchmarks.tabi.artefacts import LONGEST, TaskArtefacts, build, write_labelled
from benchmarks.tabi.sized import SIZES, BertSize, expand
from tidal import device
from tidal.arlo.manifest import load_arlo_manifest
from tidal_builders.fingerprint import code_hash

_FACTS = "levels.json"
# Held-out queries on which the logits of a level are compared with those of the trained one.
_COMPARED = 64


@dataclass(frozen=True, slots=True)
class SizedLevel:
    """Facts of a larger level, measured when it was prepared.

    Attributes:
        parameters: Number of its parameters.
        max_abs_error: Largest difference of a logit from the trained level's in float32, on held-out queries.
        linear_layers: Linear layers of the compiled model.
    """

    parameters: int
    max_abs_error: float
    linear_layers: int


def sized_artefacts(artefacts: TaskArtefacts) -> TaskArtefacts:
    """Return the artefacts of a task's larger levels, which may not be prepared yet.

    Args:
        artefacts: Artefacts of the task.
    """
    code = f"{Path(sized.__file__).read_text()}{Path(__file__).read_text()}{code_hash('tidal_builders.tabi.build')}"
    digest = hashlib.sha256(f"{code}{SIZES}{_precisions()}".encode()).hexdigest()[:12]
    task = replace(artefacts.task, name=f"{artefacts.task.name}_sized")
    return TaskArtefacts(task, artefacts.split, artefacts.folder / f"sized-{digest}", digest)


def facts(artefacts: TaskArtefacts) -> dict[str, SizedLevel] | None:
    """Return the facts of the larger levels by name; None if they are not prepared.

    Args:
        artefacts: Artefacts from `sized_artefacts`.
    """
    file = artefacts.folder / _FACTS
    if not file.exists():
        return None
    return {name: SizedLevel(**each) for name, each in json.loads(file.read_text()).items()}


def prepare_sized(artefacts: TaskArtefacts) -> TaskArtefacts:
    """Expand a task's levels and build their cascade, unless that is done; the expanded models are not kept.

    Args:
        artefacts: Artefacts of the task, with trained levels.
    """
    larger = sized_artefacts(artefacts)
    if facts(larger) is not None:
        return larger
    for other in artefacts.folder.glob("sized-*"):
        if other != larger.folder:
            shutil.rmtree(other)
    models = larger.folder / "models"
    models.mkdir(parents=True, exist_ok=True)
    measured = {}
    for level, size in SIZES.items():
        progress(f"{larger.task.name}: expanding {level}")
        measured[level] = _expand(artefacts, level, size, models / level)
    write_labelled(artefacts.split.held_out, larger.folder / "held_out.jsonl")
    samples = larger.folder / "samples.txt"
    samples.write_text("".join(f"{texts[-1]}\n" for texts in artefacts.split.held_out.texts[:400]))
    _build(larger, samples)
    found = {
        level.name: asdict(SizedLevel(*measured[level.name], linear_layers(larger.level_version(number))))
        for number, level in enumerate(larger.manifest.levels)
    }
    (larger.folder / _FACTS).write_text(json.dumps(found, indent=1))
    shutil.rmtree(models)
    return larger


def linear_layers(version_dir: Path) -> int:
    """Return the number of linear layers of a level's longest runtime after OpenVINO has optimised it.

    Args:
        version_dir: Folder of the level's version.
    """
    import openvino

    manifest = load_arlo_manifest(version_dir)
    file = manifest.artifact(manifest.runtimes[-1], version_dir).path
    compiled = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    kinds = [operation.get_rt_info()["layerType"] for operation in compiled.get_runtime_model().get_ops()]
    return sum(str(getattr(kind, "value", kind)) == "FullyConnected" for kind in kinds)


def _precisions() -> tuple[str, ...]:
    """Return the precisions to try: first bf16 where the processor supports it, in a third of the time of fp32."""
    fast = {"avx512_bf16", "amx_bf16"} & set(device.cpu().features)
    return ("bf16", "fp32") if fast else ("fp32",)


def _build(larger: TaskArtefacts, samples: Path) -> None:
    """Build both levels at the first precision that keeps the labels of both."""
    *fast, exact = _precisions()
    # One engine, so that a model of 1.5 GB is not opened several times.
    options: dict[str, object] = {"contexts": 1, "samples": str(samples)}
    for precision in fast:
        try:
            # The logits may differ as long as the labels do not.
            build(larger, SIZES, {**options, "precision": precision, "tolerance": 0.5})
        except subprocess.CalledProcessError:
            progress(f"{larger.task.name}: {precision} changes labels, or could not be built")
        else:
            return
    build(larger, SIZES, {**options, "precision": exact})


def _expand(artefacts: TaskArtefacts, level: str, size: BertSize, target: Path) -> tuple[int, float]:
    """Write the larger model of a level; return the number of its parameters and the largest error of its logits."""
    import torch
    from transformers import AutoTokenizer, BertForSequenceClassification

    source = artefacts.folder / "models" / level
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = BertForSequenceClassification.from_pretrained(source).eval()
    larger = expand(model, size)
    larger.save_pretrained(target)
    tokenizer.save_pretrained(target)
    texts = [list(column) for column in zip(*artefacts.split.held_out.texts[:_COMPARED], strict=True)]
    tokens: Any = tokenizer(*texts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
    with torch.inference_mode():
        error = (larger(**tokens).logits - model(**tokens).logits).abs().max().item()
    return sum(each.numel() for each in larger.parameters()), error
