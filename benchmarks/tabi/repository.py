"""The model repository that is served: the built models and the cascade's variants."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tabi.artefacts import TaskArtefacts
from benchmarks.tabi.variants import NO_ARLO, PADDED, large_level
from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.manifest import MANIFEST_FILE
from tidal.server.child import RunningServer
from tidal.tabi.manifest import TabiManifest

_CONCURRENT_LOADS = 3
LARGE_PADDED = "large, padded"


@dataclass(frozen=True, slots=True)
class ServedModels:
    """The served models.

    Attributes:
        models: Name of the model by system.
        load_order: Models to load: levels, then fronts.
    """

    models: dict[str, str]
    load_order: tuple[tuple[str, ...], tuple[str, ...]]


def write_repository(repository: Path, artefacts: TaskArtefacts, fronts: Mapping[str, TabiManifest]) -> ServedModels:
    """Add a task's levels, padded levels, and fronts to a repository.

    Args:
        repository: Repository on the artefacts' file system.
        artefacts: Artefacts of the task.
        fronts: Manifests by system.
    """
    manifest = artefacts.manifest
    front = artefacts.task.name
    models: dict[str, str] = {}
    levels = []
    for number, level in enumerate(manifest.levels):
        models[level.name] = level.model
        version_dir = artefacts.level_version(number)
        _copy(version_dir, repository / level.model)
        levels.append(level.model)
        if NO_ARLO in fronts:
            padded = level.model + PADDED
            _copy(version_dir, repository / padded, pad(load_arlo_manifest(version_dir)).model_dump_json())
            levels.append(padded)
    if NO_ARLO in fronts:
        models[LARGE_PADDED] = manifest.levels[large_level(manifest)].model + PADDED
    version_dir = artefacts.version(front)
    for number, (system, content) in enumerate(fronts.items()):
        models[system] = f"{front}_{number}"
        named = content.model_copy(update={"name": models[system]})
        _copy(version_dir, repository / models[system], named.model_dump_json())
    return ServedModels(models, (tuple(levels), tuple(models[system] for system in fronts)))


def load(server: RunningServer, models: Sequence[str]) -> None:
    """Load models, several at a time; a model that fails to load ends the run.

    Args:
        server: Running server.
        models: Names of the models.
    """
    with ThreadPoolExecutor(_CONCURRENT_LOADS) as pool:
        for each in [pool.submit(server.control.load, model, None) for model in models]:
            each.result()


def unload(server: RunningServer, served: ServedModels) -> None:
    """Unload a task's models, those that call others first.

    Args:
        server: Running server.
        served: Served models of the task.
    """
    for models in reversed(served.load_order):
        for model in models:
            server.control.unload(model)


def pad(manifest: ArloManifest) -> ArloManifest:
    """Return a manifest with one runtime, which pads to the maximum length.

    Args:
        manifest: Manifest of a level.
    """
    longest = manifest.runtimes[-1].model_copy(update={"dynamic": False})
    return manifest.model_copy(update={"runtimes": (longest,)})


def _copy(version_dir: Path, target: Path, manifest: str | None = None) -> None:
    """Create a model from a version: small files are copied, engines are linked."""
    source = version_dir.parent
    config = (source / "config.pbtxt").read_text().replace(f'"{source.name}"', f'"{target.name}"')
    shutil.copytree(version_dir, target / version_dir.name, copy_function=_link)
    (target / "config.pbtxt").write_text(config)
    if manifest is not None:
        (target / version_dir.name / MANIFEST_FILE).write_text(manifest)


def _link(source: str, target: str) -> None:
    if "engines" in Path(source).parts:
        os.link(source, target)
    else:
        shutil.copy2(source, target)
