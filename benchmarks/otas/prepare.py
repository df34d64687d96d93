"""Build the artefacts of the live part, once: pretrained or trained vision transformers, with three tasks each.

Images are not shared between steps. Of a task's images a fifth is for the accuracies that policies use; of the others a
tenth says when its training ends, and transformers and tasks are trained on the rest. Clients send images from other
files.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
import yaml

import tidal_builders.otas.training
from benchmarks.kept import cache_folder
from benchmarks.otas import images, pretrained, recipe
from benchmarks.otas.images import Images, images_of
from benchmarks.otas.live.artefacts import BASE, ArtefactsMissing, OtasArtefacts
from benchmarks.otas.pretrained import model_file, read_pretrained
from benchmarks.otas.recipe import DIGITS, DIGITS_ALONE, PHOTOGRAPHS, FromNothing, Pretrained, Recipe, Size
from benchmarks.otas.task_training import TransformerTask, train_tasks
from benchmarks.report import progress
from tidal.otas.manifest import load_otas_manifest
from tidal.repository.entries import ModelEntry
from tidal_builders.otas import transformer, vit
from tidal_builders.otas.build import build_otas
from tidal_builders.otas.spec import OtasSpec
from tidal_builders.otas.training.division import divide
from tidal_builders.otas.training.images import LabelledImages, read_images
from tidal_builders.otas.training.pretrain import pretrain
from tidal_builders.otas.vit import Vit, write_vit
from tidal_builders.progress import progress_bars as bars
from tidal_builders.specs import load_spec

#: The base with prompts that stay for later layers, in a repository of its own: see `prompt_forms`.
ACCUMULATED = f"{BASE}-accumulated"
_DONE = "done"


def load(data: Path | None, how: Recipe | None = None) -> OtasArtefacts:
    """Return the artefacts that `prepare` built.

    Raises:
        ArtefactsMissing: It has not been run to its end with this data and code.
    """
    how = how or _recipe(data)
    folder, digest = _place(data, how)
    if not (folder / _DONE).exists():
        option = "" if data is None else f" --data {data}"
        raise ArtefactsMissing(
            f"there is no {folder / _DONE}: run python -m benchmarks.otas.prepare{option}, which takes one or two hours"
        )
    tasks = tuple(task.live() for task in _images(data, how, folder))
    return OtasArtefacts(folder, folder / "repository", tasks, digest)


def prepare(data: Path | None, how: Recipe | None = None) -> OtasArtefacts:
    """Build missing artefacts; an interrupted run continues after its last epoch.

    Args:
        data: Folder with photographs; None for digits only.
        how: Recipe; None for the default one.
    """
    how = how or _recipe(data)
    folder, _ = _place(data, how)
    folder.mkdir(parents=True, exist_ok=True)
    tasks, repository = _images(data, how, folder), folder / "repository"
    for size in how.sizes:
        _transformer(folder, size, how, tasks)
        _build(folder, repository, size.name, size.name, how, size.gammas)
    version = ModelEntry(repository / BASE).latest()
    assert version is not None
    prompted = tuple(gamma for gamma in load_otas_manifest(version).gammas if gamma >= 0)
    forms = forms_repository(folder)
    _build(folder, forms, ACCUMULATED, BASE, how, prompted, prompts="accumulated")
    trainings = [TransformerTask(repository, size.name, task) for size in how.sizes for task in tasks]
    trainings += [TransformerTask(forms, ACCUMULATED, task) for task in tasks if task.task == DIGITS]
    train_tasks(trainings, how)
    (folder / _DONE).touch()
    return load(data, how)


def forms_repository(folder: Path) -> Path:
    """Return the repository with `ACCUMULATED`, which is not served, in the folder of the artefacts."""
    return folder / "forms"


def _recipe(data: Path | None) -> Recipe:
    return DIGITS_ALONE if data is None else PHOTOGRAPHS


def _place(data: Path | None, how: Recipe) -> tuple[Path, str]:
    """Return the folder of the artefacts, and the digest in its name."""
    digest = _digest(data, how)
    return cache_folder() / f"otas-{digest}", digest


def _images(data: Path | None, how: Recipe, folder: Path) -> list[Images]:
    return [images_of(each.task, data, folder / "images") for each in how.tasks]


def _transformer(folder: Path, size: Size | Pretrained, how: Recipe, tasks: Sequence[Images]) -> None:
    """Write a transformer without head into a folder of its name."""
    target, checkpoint = folder / size.name, folder / f"{size.name}.epoch"
    if target.exists():
        return
    if isinstance(size, Pretrained):
        found = read_pretrained(model_file(), size.pixels)
    else:
        assert how.pretraining is not None, f"{size.name} is to be trained, and the recipe does not say on what"
        task = next(task for task in tasks if task.task == how.pretraining.task)
        # Only what the task is trained on too: its validation images, and those that accuracies are measured on, are
        # new to the transformer.
        seen = divide(read_images(task.train, task.labels), how.training(task.task)).trained
        found = _pretrain(size, how.pretraining, seen, checkpoint)
    aside = folder / f".{size.name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    write_vit(aside, found)
    aside.replace(target)
    checkpoint.unlink(missing_ok=True)


def _pretrain(size: Size, how: FromNothing, seen: LabelledImages, checkpoint: Path) -> Vit:
    progress(f"pretraining {size.name} on {how.task}")
    chosen = replace(how.settings, epochs=size.epochs)

    def report_progress(share: float) -> None:
        progress(f"{size.name}: epoch {round(share * size.epochs)} of {size.epochs}, {len(seen)} images")

    variation = replace(how.variation, seen=size.seen)
    return pretrain(size.config, seen, chosen, report_progress, variation=variation, checkpoint=checkpoint)


def _build(
    folder: Path,
    repository: Path,
    name: str,
    source: str,
    how: Recipe,
    gammas: tuple[int, ...],
    prompts: str = "replaced",
) -> None:
    """Publish the transformer in the folder `source` under a name."""
    content = {
        "kind": "otas",
        "name": name,
        "model": str(folder / source),
        "gammas": list(gammas),
        "prompts": prompts,
        "threads": how.threads,
        "profile_seconds": how.profile_seconds,
    }
    spec = folder / f"{name}.yaml"
    spec.write_text(yaml.safe_dump(content, sort_keys=False))
    progress(f"building {name} (nothing to do when it is up to date)")
    wanted = load_spec(spec)
    assert isinstance(wanted, OtasSpec)
    with bars(name) as report:
        build_otas(wanted, repository, spec_file=spec, progress=report)


def _digest(data: Path | None, how: Recipe) -> str:
    """Return a digest of recipe, training code and data."""
    files = sorted(Path(next(iter(tidal_builders.otas.training.__path__))).glob("*.py"))
    files += [Path(str(module.__file__)) for module in (transformer, vit, images, pretrained, recipe)]
    text = "".join(file.read_text() for file in files) + repr(how)
    text += images.digest(data, tuple(each.task for each in how.tasks))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def main(data: Annotated[Path | None, typer.Option(help="Folder with cifar10 and clothing_small.")] = None) -> None:
    """Train and build the models that `python -m benchmarks.otas` serves; one or two hours on two cores, once."""
    print(f"artefacts {prepare(data).digest}")


if __name__ == "__main__":
    typer.run(main)
