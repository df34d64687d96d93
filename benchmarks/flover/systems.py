"""The compared systems as models of one repository, and the settings of baselines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import benchmarks
from benchmarks.flover.prepare import LONGEST, SLOTS, FloverArtefacts

#: Tidal's models: the compared one, the same without shuffle, and one in float32.
TIDAL, UNSHUFFLED, EXACT = "tidal", "tidal_unshuffled", "tidal_fp32"
#: Baselines, by the names of their models.
INSTANCES, BATCHES, TRANSFORMERS, GENAI = "instances", "batches", "transformers", "genai"
PEERS = (TRANSFORMERS, GENAI)
LABELS = {
    TIDAL: "Tidal",
    UNSHUFFLED: "Tidal, no shuffle",
    INSTANCES: "concurrent instances",
    TRANSFORMERS: "transformers batching",
    GENAI: "OpenVINO GenAI",
}
# Gigabytes of keys and values: all slots of the longest requests in float32 take 1.4.
_CACHE_GB = 2


@dataclass(frozen=True, slots=True)
class Form:
    """A baseline with its settings.

    Attributes:
        model: Name of its model in the repository.
        label: Label in tables.
        settings: Parameters of the model.
    """

    model: str
    label: str
    settings: Mapping[str, str] = field(default_factory=dict)


def instances(engine: str, cores: int, *, most: int = SLOTS, streams: int = 1) -> Form:
    """One thread per request, at most `most` at a time."""
    label = f"{engine}, {streams} x {cores // streams} threads, {most} at a time"
    return Form(INSTANCES, label, {"engine": engine, "most": str(most), "streams": str(streams)})


def batches(engine: str, *, most: int = SLOTS, window_s: float | None = None) -> Form:
    """Batches of the requests within a window, or of a fixed size."""
    given = {"engine": engine, "most": str(most), "streams": "1"}
    if window_s is None:
        return Form(BATCHES, f"batches of {most}", given)
    return Form(BATCHES, f"window of {window_s:g} s", {**given, "window_s": str(window_s)})


def transformers_forms(*, quick: bool) -> list[Form]:
    """Settings of transformers' continuous batching to try."""
    pages = (64,) if quick else (16, 64, 256)
    return [Form(TRANSFORMERS, f"pages of {page}", {"page": str(page), "batch_tokens": "256"}) for page in pages]


def genai_forms(*, quick: bool) -> list[Form]:
    """Settings of OpenVINO GenAI's continuous batching to try."""
    return [
        Form(
            GENAI,
            f"passes of {tokens}{', prompts split' if split else ''}",
            {"batch_tokens": str(tokens), "split": "yes" if split else "no", "cache_gb": str(_CACHE_GB)},
        )
        for tokens, split in (((256, True),) if quick else ((64, True), (256, True), (2048, True), (2048, False)))
    ]


def write_repository(repository: Path, artefacts: FloverArtefacts) -> None:
    """Add Tidal's models with linked files, and an entry for each baseline, which is loaded with its settings."""
    # Prompts of warm-ups are sent again in the measured rounds, and no peer reuses them.
    whole = 'parameters { key: "reuse_prefixes" value { string_value: "false" } }\n'
    shuffled = 'parameters { key: "shuffle" value { string_value: "false" } }\n'
    for name, precision, more in (
        (TIDAL, artefacts.precision, whole),
        (UNSHUFFLED, artefacts.precision, whole + shuffled),
        (EXACT, "fp32", whole),
    ):
        version = artefacts.version(precision)
        for file in (file for file in version.rglob("*") if file.is_file()):
            place = repository / name / version.name / file.relative_to(version)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, place)
        config = (version.parent / "config.pbtxt").read_text()
        config = config.replace(f'name: "{version.parent.name}"\n', f'name: "{name}"\n')
        (repository / name / "config.pbtxt").write_text(config + more)
    backend = Path(__file__).parent / "serving" / "model.py"
    for name in (INSTANCES, BATCHES, *PEERS):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(backend.read_text())
        (repository / name / "config.pbtxt").write_text('backend: "python"\n')  # replaced when it is loaded


def config(form: Form, artefacts: FloverArtefacts) -> dict[str, Any]:
    """Return the complete config of a baseline for Triton's load API."""
    given = {
        "code": Path(benchmarks.__path__[0]).parent,
        "system": form.model,
        "precision": artefacts.precision,
        "threads": artefacts.manifest.threads,
        "source": artefacts.source,
        "graph": artefacts.graph,
        "extra": artefacts.extra,
        "version": artefacts.version(artefacts.precision),
        "longest": min(LONGEST, artefacts.manifest.max_length),
        "most": SLOTS,
        **form.settings,
    }
    return {
        "name": form.model,
        "backend": "python",
        "max_batch_size": 0,
        "model_transaction_policy": {"decoupled": True},
        "input": [
            {"name": "input_ids", "data_type": "TYPE_INT64", "dims": [-1]},
            {"name": "stream", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
        ],
        "output": [
            {"name": "token_ids", "data_type": "TYPE_INT64", "dims": [-1]},
            {"name": "finish_reason", "data_type": "TYPE_STRING", "dims": [1]},
        ],
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
        "parameters": {name: {"string_value": str(value)} for name, value in given.items()},
    }
