"""Artefacts of the shared level's benchmark: a base, a task of it, the same task as a model, and one cascade.

The measured cascades are copies of that one, with tasks of different names. Their weights are the same, which affects
neither their memory nor the batches that they share.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

import demo.train
from benchmarks.compositions.artefacts import LABELLED, RECIPES, SEED, BuiltArtefacts, begin
from benchmarks.report import progress
from demo.texts import write_labelled
from tidal.arlo.manifest import load_arlo_manifest
from tidal.manifest import MANIFEST_FILE
from tidal.tabi.manifest import Level, load_tabi_manifest
from tidal.tasks.folder import tasks_folder

OWN, SHARED = "own", "shared"
BASE, TASK, SMALL, CASCADE = "base", "intents", "small", "cascade"
_LAYERS, _ = RECIPES[SMALL]
_LONGEST = 128


def model(number: int) -> str:
    """Return the name of a measured cascade.

    Args:
        number: Number of the cascade.
    """
    return f"cascade_{number}"


def prepare() -> BuiltArtefacts:
    """Train and build the missing artefacts: a few minutes, once."""
    folder, digest = begin("shared-level", __file__)
    if not (folder / "frozen" / "config.json").exists():
        _write_frozen(folder / "frozen")
    write_labelled(folder / "labelled.tsv", LABELLED, SEED)
    repository = folder / "repository"
    progress("building (nothing to do when it is up to date)")
    specs = {spec["name"]: _write_spec(folder, spec) for spec in _specs(folder)}
    _tidal("build", str(specs[BASE]), str(specs[SMALL]), "--repository", str(repository))
    if not (tasks_folder(repository / BASE) / TASK).is_dir():
        # All weights that differ from the base, which are the pooler's.
        options = ("--name", TASK, "--sparsity", "0", "--repository", str(repository))
        _tidal("tasks", "add", BASE, str(folder / "small"), *options)
    _tidal("build", str(specs[CASCADE]), "--repository", str(repository))
    return BuiltArtefacts(repository, digest)


def write_system(repository: Path, artefacts: BuiltArtefacts, system: str, count: int) -> None:
    """Add cascades to a repository, each with its own small model or with a task of one base.

    All have the same version and thresholds, so that a query with the same id has the same draws. Engines are copied:
    processes would share the memory of linked files.

    Args:
        repository: Repository to write to.
        artefacts: Built artefacts.
        system: `OWN` or `SHARED`.
        count: Number of cascades.
    """
    version = artefacts.version(CASCADE)
    made = load_tabi_manifest(version)
    if system == SHARED:
        _copy(artefacts.version(BASE), repository / BASE)
        for number in range(count):
            task = tasks_folder(artefacts.repository / BASE) / TASK
            shutil.copytree(task, tasks_folder(repository / BASE) / f"{TASK}_{number}")
    for number in range(count):
        levels = tuple(_level(repository, artefacts, system, level, number) for level in made.levels)
        front = made.model_copy(update={"name": model(number), "levels": levels})
        _copy(version, repository / model(number), front)


def _level(repository: Path, artefacts: BuiltArtefacts, system: str, level: Level, number: int) -> Level:
    """Return a cascade's level; if the cascade has its own model for it, that is added to the repository."""
    if level.task is not None and system == SHARED:
        return level.model_copy(update={"task": f"{TASK}_{number}"})
    own = f"{model(number)}_{level.name}"
    source = artefacts.version(SMALL if level.task is not None else level.model)
    _copy(source, repository / own)
    fingerprint = load_arlo_manifest(source).fingerprint
    return level.model_copy(
        update={"model": own, "task": None, "version": int(source.name), "fingerprint": fingerprint}
    )


def _copy(version: Path, target: Path, manifest: BaseModel | None = None) -> None:
    shutil.copytree(version, target / version.name)
    config = (version.parent / "config.pbtxt").read_text().replace(f'"{version.parent.name}"', f'"{target.name}"')
    (target / "config.pbtxt").write_text(config)
    if manifest is not None:
        (target / version.name / MANIFEST_FILE).write_text(manifest.model_dump_json())


def _write_frozen(target: Path) -> None:
    """Write the frozen layers that the small model was trained on."""
    from transformers import AutoTokenizer, BertModel

    source = demo.train.minilm_folder()
    BertModel.from_pretrained(source, num_hidden_layers=_LAYERS).save_pretrained(target)
    AutoTokenizer.from_pretrained(source).save_pretrained(target)


def _specs(folder: Path) -> list[dict[str, Any]]:
    runtimes = {"precision": "fp32", "form": "dynamic", "lengths": [32, 64, _LONGEST], "max_batch": 4}
    outputs = ["logits", "attention_received"]
    base = {"kind": "pets", "name": BASE, "model": str(folder / "frozen"), "max_length": _LONGEST}
    return [
        {**base, "attention_received": True, "profile_seconds": 10},
        {"kind": "arlo", "name": SMALL, "model": str(folder / "small"), "outputs": outputs, **runtimes},
        {
            "kind": "tabi",
            "name": CASCADE,
            "levels": [
                {"name": "small", "model": BASE, "task": TASK},
                {"name": "large", "model": str(folder / "large")},
            ],
            "data": "labelled.tsv",
            "target": {"escalation_rate": 0.3},
            "runtimes": runtimes,
        },
    ]


def _write_spec(folder: Path, spec: dict[str, Any]) -> Path:
    path = folder / f"{spec['name']}.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def _tidal(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "tidal_client.main", *arguments], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    print(f"artefacts {prepare().digest}")
