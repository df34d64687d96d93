"""A task's artefacts: its data, its models, and a cascade that `tidal build` makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.report import progress
from benchmarks.tabi import train
from benchmarks.tabi.tasks import DataTask, TaskQueries, TaskSplit
from tidal.repository.entries import ModelEntry
from tidal.tabi.manifest import TabiManifest, load_tabi_manifest

# Maximum length that levels are trained for, in tokens; see `train`.
LONGEST = 320
# Lengths of runtimes, up to the task's longest query.
_LENGTHS = (16, 32, 64, 128)
# The builder needs a part for its own report; the benchmark reports on the dev split.
_PARTS = {"calibration": 0.3, "selection": 0.6, "report": 0.1}


@dataclass(frozen=True, slots=True)
class TaskArtefacts:
    """A task's data, models and repository; `digest` is the hash of the recipe, the data and the code."""

    task: DataTask
    split: TaskSplit
    folder: Path
    digest: str

    @property
    def repository(self) -> Path:
        """Model repository with the cascade and its levels."""
        return self.folder / "repository"

    def version(self, model: str) -> Path:
        """Return a model's newest version folder."""
        latest = ModelEntry(self.repository / model).latest()
        assert latest is not None
        return latest

    @property
    def manifest(self) -> TabiManifest:
        """Manifest of the cascade."""
        return load_tabi_manifest(self.version(self.task.name))

    def level_version(self, level: int) -> Path:
        """Return the version folder of a level of the cascade.

        Args:
            level: Index of the level.
        """
        found = self.manifest.levels[level]
        return self.repository / found.model / str(found.version)


def write_labelled(queries: TaskQueries, file: Path) -> None:
    """Write queries for `tidal build`: one JSON object per line.

    Args:
        queries: Labelled queries.
        file: File to write.
    """
    with file.open("w", encoding="utf-8") as lines:
        for texts, label in zip(queries.texts, queries.truth, strict=True):
            row = dict(zip(("text", "text_pair"), texts, strict=False))
            lines.write(json.dumps({**row, "label": label}) + "\n")


def build(artefacts: TaskArtefacts, levels: Iterable[str], runtimes: Mapping[str, object]) -> None:
    """Build a cascade of the levels in `models`, from the labelled queries in `held_out.jsonl`, unless it is current.

    Args:
        artefacts: Artefacts whose folder has both.
        levels: Names of the levels, the smallest first.
        runtimes: Options of the runtimes, in addition to their shapes.
    """
    task, folder = artefacts.task, artefacts.folder
    longest = -(-train.longest_query(artefacts.split) // 8) * 8
    spec = {
        "kind": "tabi",
        "name": task.name,
        "levels": [{"name": level, "model": str(folder / "models" / level)} for level in levels],
        "data": str(folder / "held_out.jsonl"),
        "parts": _PARTS,
        # Every candidate meets it: the benchmark selects by its own targets among the kept candidates.
        "target": {"latency_ms": 60_000},
        "runtimes": {
            **runtimes,
            "form": "dynamic",
            "max_batch": 4,
            "lengths": [*(length for length in _LENGTHS if length < longest), longest],
        },
    }
    file = folder / f"{task.name}.yaml"
    content = yaml.safe_dump(spec, sort_keys=False)
    if not file.exists() or file.read_text() != content:
        file.write_text(content)
    progress(f"building {task.name} (nothing to do when it is up to date)")
    command = [sys.executable, "-m", "tidal_client.main", "build", str(file), "--repository", str(artefacts.repository)]
    subprocess.run(command, check=True, stdout=sys.stderr)
