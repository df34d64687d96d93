"""Build a tiny vision transformer with random tasks into a repository, without timm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from testing.vits import tiny_vit
from tidal.otas.manifest import OtasManifest, load_otas_manifest
from tidal.otas.tasks import Head, OtasProvenance, OtasTask, TaskParameters, add_task
from tidal.tasks.folder import tasks_folder
from tidal_builders.otas.build import build_otas
from tidal_builders.otas.report import OtasReport
from tidal_builders.otas.vit import Vit, write_vit
from tidal_builders.specs import load_spec


def write_source(folder: Path, vit: Vit | None = None) -> Path:
    """Write a source folder that does not need timm; see `tiny_vit`."""
    folder.mkdir(parents=True)
    write_vit(folder, vit or tiny_vit())
    return folder


def build(repository: Path, source: Path, *, force: bool = False, **fields: Any) -> OtasReport:
    """Build the model "vision" into `repository`, quickly: γ -4, 0, 1 and 2, batches up to 4."""
    content = {"kind": "otas", "name": "vision", "model": str(source), "gammas": [-4, 0, 1, 2], "max_batch": 4}
    content |= {"static_batches": [1, 2], "threads": 1, "profile_seconds": 0.01}
    path = source.parent / "vision.yaml"
    path.write_text(yaml.safe_dump(content | fields))
    spec: Any = load_spec(path)
    return build_otas(spec, repository, spec_file=path, force=force)


def manifest_of(repository: Path, version: int = 1) -> OtasManifest:
    """Read the manifest of the model "vision"."""
    return load_otas_manifest(repository / f"vision/{version}")


def random_parameters(manifest: OtasManifest, labels: Sequence[str], seed: int = 0) -> TaskParameters:
    """Draw a head and prompts for which images and γ give different logits."""
    draw = np.random.default_rng(seed)

    def values(*shape: int) -> Any:
        return draw.normal(size=shape).astype(np.float32)

    shapes = {gamma: shape for gamma in manifest.gammas if (shape := manifest.prompt_shape(gamma))}
    head = Head(values(len(labels), manifest.width), values(len(labels)))
    return TaskParameters(tuple(labels), head, {}, {gamma: values(*shape) for gamma, shape in shapes.items()})


def add_random_task(
    repository: Path,
    name: str,
    labels: Sequence[str],
    *,
    seed: int = 0,
    accuracy: Mapping[int, float] | None = None,
    replace: bool = False,
) -> OtasTask:
    """Add a task to the model "vision"; the default accuracy increases with γ."""
    manifest = manifest_of(repository)
    steps = dict(zip(manifest.gammas, np.linspace(0.5, 0.9, len(manifest.gammas)).tolist(), strict=True))
    return add_task(
        tasks_folder(repository / "vision"),
        name,
        random_parameters(manifest, labels, seed),
        steps if accuracy is None else accuracy,
        manifest,
        OtasProvenance(source="random numbers"),
        replace=replace,
    )
