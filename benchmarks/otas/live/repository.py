"""Served models: one per system that serves the same transformer, and the sizes of model switching."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from benchmarks.otas.live.artefacts import BASE, LARGE, SMALL
from tidal.manifest import MANIFEST_FILE
from tidal.otas.manifest import OtasManifest, load_otas_manifest
from tidal.repository.entries import ModelEntry
from tidal.tasks.folder import tasks_folder

#: Served models whose γ is chosen by Tidal's policy and by the published one.
PARETO_MODEL, PAPER_MODEL = "pareto", "paper"
#: Models of model switching, from fast to accurate; each runs only γ 0.
SIZES = {"size_small": SMALL, "size_base": BASE, "size_large": LARGE}
# While capacity is measured, queries arrive faster than they are answered, and none may be refused.
_QUEUE = 100_000


def fixed_model(gamma: int) -> str:
    """Return the name of the served model that runs one γ."""
    return f"fixed_{gamma}".replace("-", "minus_")


def version_of(repository: Path, model: str) -> Path:
    """Return the folder of the newest version of a built model."""
    latest = ModelEntry(repository / model).latest()
    assert latest is not None, f"{repository} has no version of {model}"
    return latest


def write_repository(repository: Path, built: Path) -> None:
    """Write every model that may be served, on the file system of the built models.

    A model that runs one γ has only the engine of that γ, so that its load time and memory are its own.
    """
    manifest = load_otas_manifest(version_of(built, BASE))
    for name, policy in ((PARETO_MODEL, "pareto"), (PAPER_MODEL, "paper")):
        _copy(built, BASE, manifest, repository / name, {"policy": policy})
    for gamma in manifest.gammas:
        _copy(built, BASE, only(manifest, gamma), repository / fixed_model(gamma), _fixed(gamma))
    for name, size in SIZES.items():
        of_size = only(load_otas_manifest(version_of(built, size)), 0)
        _copy(built, size, of_size, repository / name, _fixed(0))


def only(manifest: OtasManifest, gamma: int) -> OtasManifest:
    """Return the manifest with only the engines of 0 and of one γ, and the γ that share these engines."""
    kept = {0, gamma} | {each for engine in manifest.engines_of(gamma) for each in engine.gammas}
    places = [place for place, each in enumerate(manifest.gammas) if each in kept]
    profile = manifest.profile
    by_gamma = {
        name: tuple(getattr(profile, name)[place] for place in places)
        for name in ("gammas", "median_ms", "p95_ms", "image_bytes")
    }
    engines = tuple(each for each in manifest.engines if kept.issuperset(each.gammas))
    folders = {Path(each.file).parent for each in engines}
    changed = {
        "gammas": by_gamma["gammas"],
        "engines": engines,
        # A version also contains the files that tasks are trained from.
        "files": tuple(each for each in manifest.files if Path(each.path).parent in folders),
        "verification": tuple(each for each in manifest.verification if each.gamma in kept),
        "profile": profile.model_copy(update=by_gamma),
    }
    # Checked as a whole, which `model_copy` leaves out.
    return OtasManifest.model_validate_json(manifest.model_copy(update=changed).model_dump_json())


def _fixed(gamma: int) -> dict[str, str]:
    return {"policy": "fixed", "gamma": str(gamma)}


def _copy(built: Path, model: str, manifest: OtasManifest, target: Path, parameters: dict[str, str]) -> None:
    """Copy a built model and its tasks under another name; engines are linked."""
    version = version_of(built, model)
    for record in manifest.files:
        place = target / version.name / record.path
        place.parent.mkdir(parents=True, exist_ok=True)
        os.link(version / record.path, place)
    (target / version.name / MANIFEST_FILE).write_text(manifest.model_dump_json())
    config = (version.parent / "config.pbtxt").read_text().replace(f'name: "{model}"\n', f'name: "{target.name}"\n')
    given = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in {**parameters, "max_queue_size": _QUEUE}.items()
    )
    (target / "config.pbtxt").write_text(config + given)
    shutil.copytree(tasks_folder(version.parent), tasks_folder(target))
