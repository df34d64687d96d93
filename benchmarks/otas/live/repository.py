"""The models that are served: one for every way to serve the same transformer, and the sizes to switch between."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from benchmarks.otas.live.artefacts import BASE, LARGE, SMALL
from tidal.manifest import MANIFEST_FILE
from tidal.otas.manifest import OtasManifest, load_otas_manifest
from tidal.repository.entries import ModelEntry
from tidal.tasks.folder import tasks_folder

#: Served models, γ chosen by labels and as published.
PARETO_MODEL, PAPER_MODEL = "pareto", "paper"
#: Of model switching, from fast to accurate; each runs γ 0 and nothing else.
SIZES = {"size_small": SMALL, "size_base": BASE, "size_large": LARGE}
# While capacity is measured, queries come faster than they are answered, and none is refused.
_QUEUE = 100_000


def fixed_model(gamma: int) -> str:
    """The served model that runs one γ."""
    return f"fixed_{gamma}".replace("-", "minus_")


def version_of(repository: Path, model: str) -> Path:
    """The newest version's folder of a model that was built."""
    latest = ModelEntry(repository / model).latest()
    assert latest is not None, f"{repository} has no version of {model}"
    return latest


def write_repository(repository: Path, built: Path) -> None:
    """Add every model that may be served; on the file system of those that were built.

    A model that runs one γ has no engine but that one's: what it takes to load and to hold is its own.
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
    """The same model with the engines of 0 and of one γ; those that share an engine with it stay."""
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
        # Beside engines a version holds what tasks are trained from.
        "files": tuple(each for each in manifest.files if Path(each.path).parent in folders),
        "verification": tuple(each for each in manifest.verification if each.gamma in kept),
        "profile": profile.model_copy(update=by_gamma),
    }
    # Checked as a whole, which `model_copy` leaves out.
    return OtasManifest.model_validate_json(manifest.model_copy(update=changed).model_dump_json())


def _fixed(gamma: int) -> dict[str, str]:
    return {"policy": "fixed", "gamma": str(gamma)}


def _copy(built: Path, model: str, manifest: OtasManifest, target: Path, parameters: dict[str, str]) -> None:
    """A model of its own from one that was built, with its tasks: engines are linked."""
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
