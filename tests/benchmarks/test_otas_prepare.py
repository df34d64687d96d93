"""Artefacts of OTAS's live part: trained, built, with tasks, and no image used in two steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import benchmarks.otas.images
import benchmarks.otas.prepare
import benchmarks.otas.task_training
import tidal_builders.otas.registration
from benchmarks.otas import prompt_forms
from benchmarks.otas.images import images_of
from benchmarks.otas.live.artefacts import BASE, LARGE, SMALL, ArtefactsMissing, OtasArtefacts
from benchmarks.otas.prepare import ACCUMULATED, load, prepare
from benchmarks.otas.recipe import (
    CIFAR10,
    CLOTHING,
    DIGITS,
    DIGITS_ALONE,
    NOISY,
    PARITY,
    PHOTOGRAPHS,
    FromNothing,
    Pretrained,
    Recipe,
    Size,
    Training,
)
from benchmarks.report import Report
from tidal.otas.manifest import load_otas_manifest
from tidal.otas.tasks import load_task
from tidal.tasks.folder import tasks_folder
from tidal_builders.otas.training.images import LabelledImages, read_images
from tidal_builders.otas.training.pretrain import Variation
from tidal_builders.otas.training.settings import ImageTrainingSettings

pytestmark = pytest.mark.slow

QUICK = ImageTrainingSettings(epochs=2, head_epochs=4, batch=64, patience=2, validated=0.25)
TINY = Recipe(
    sizes=(Size(SMALL, 8, 1, 2, 1), Size(BASE, 8, 2, 2, 1, (-8, 0, 1)), Size(LARGE, 12, 1, 2, 1, seen=0.5)),
    pretraining=FromNothing(CIFAR10, ImageTrainingSettings(batch=32, rate=0.001), Variation(mirror=True, shift=2)),
    tasks=(Training(CIFAR10, QUICK), Training(DIGITS, QUICK)),
    profile_seconds=0.01,
)


def write_photographs(data: Path) -> None:
    """Coloured noise, in files as those of CIFAR-10 are called."""
    (data / "cifar10").mkdir(parents=True)
    for file, count, seed in (("train4k_u8", 60, 0), ("dev2k_u8", 20, 1)):
        draw = np.random.default_rng(seed)
        images = draw.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
        np.savez(data / f"cifar10/{file}.npz", images=images, labels=np.arange(count) % 10)


@pytest.fixture(scope="module", autouse=True)
def few_digits() -> Iterator[None]:
    """The first 240 of the 1,797 digits: 180 of them are trained on."""
    found = load_digits()
    few = SimpleNamespace(images=found.images[:240], target=found.target[:240])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmarks.otas.images, "load_digits", lambda: few)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_photographs(folder)
    return folder


class Used:
    """Images that were given to a function, which runs all the same."""

    def __init__(self, of: Any) -> None:
        self._of = of
        self.images: set[bytes] = set()
        self.validation: set[bytes] = set()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        for each in arguments:
            if isinstance(each, LabelledImages):
                self.images |= set(each.encoded)
        if isinstance(validation := options.get("validation"), LabelledImages):
            self.validation |= set(validation.encoded)
        return self._of(*arguments, **options)


PRETRAINED = Used(benchmarks.otas.prepare.pretrain)
TRAINED = Used(tidal_builders.otas.registration.train_task)
PROFILED = Used(tidal_builders.otas.registration.measure_accuracy)
# What is reported of the trainings before and after an interruption.
REPORTED: list[list[str]] = [[], []]
INTERRUPTED = f"{BASE}: {DIGITS}, γ 1: epoch 1 of at most 2"


def interrupt(text: str) -> None:
    REPORTED[0].append(text)
    if text.startswith(INTERRUPTED):
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> OtasArtefacts:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(benchmarks.otas.prepare, "pretrain", PRETRAINED)
        patch.setattr(tidal_builders.otas.registration, "train_task", TRAINED)
        patch.setattr(tidal_builders.otas.registration, "measure_accuracy", PROFILED)
        with pytest.raises(ArtefactsMissing, match=rf"run python -m benchmarks.otas.prepare --data {data}"):
            load(data, TINY)
        patch.setattr(benchmarks.otas.task_training, "progress", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(data, TINY)
        patch.setattr(benchmarks.otas.task_training, "progress", REPORTED[1].append)
        prepare(data, TINY)
        return load(data, TINY)


def test_an_interrupted_training_continues_after_its_last_epoch(made: OtasArtefacts) -> None:
    before, after = REPORTED
    assert before[-1].startswith(INTERRUPTED)
    assert "of the validation images right; all prompts: about " in before[-1]
    assert not any(text.startswith((f"{SMALL}:", f"{BASE}: {CIFAR10}")) for text in after)
    of_digits = [
        text.split(", keeps")[0].split(" of at")[0] for text in after if text.startswith(f"{BASE}: {DIGITS}, ")
    ]
    # Heads are trained first, and are kept; of the prompts an epoch was left.
    start = f"{BASE}: {DIGITS}, γ"
    assert of_digits == [f"{start} 0: trained", f"{start} 1: epoch 2", f"{start} 1: trained", f"{start} -8: trained"]
    assert sum(text.startswith(f"{LARGE}: {CIFAR10}, γ 0: trained") for text in after) == 1
    assert sum(text.startswith(f"{ACCUMULATED}: {DIGITS}, γ 1: epoch 1") for text in after) == 1


def test_every_size_has_every_task(made: OtasArtefacts) -> None:
    assert made.folder.name == f"otas-{made.digest}"
    for size in TINY.sizes:
        manifest = load_otas_manifest(made.repository / size.name / "1")
        assert manifest.gammas == size.gammas
        for task in (CIFAR10, DIGITS):
            found = load_task(tasks_folder(made.repository / size.name), task, manifest)
            assert set(found.accuracy) == set(manifest.gammas)
            assert found.record.provenance.settings["epochs"] == "2"


def test_live_queries_are_labelled_images_of_their_own(made: OtasArtefacts, data: Path) -> None:
    assert [(task.name, len(task.images), len(task.truth)) for task in made.tasks] == [
        (CIFAR10, 20, 20), (DIGITS, 60, 60),
    ]  # fmt: skip
    labels = load_task(tasks_folder(made.repository / BASE), DIGITS, load_otas_manifest(made.repository / BASE / "1"))
    assert set(made.tasks[1].truth) == set(labels.record.labels)
    for task in made.tasks:
        assert not set(task.images) & (PRETRAINED.images | TRAINED.images | TRAINED.validation | PROFILED.images)


def test_accuracies_are_measured_on_images_new_to_training(made: OtasArtefacts, data: Path) -> None:
    assert (len(PRETRAINED.images), len(TRAINED.images), len(PROFILED.images)) == (36, 36 + 108, 12 + 36)
    assert len(TRAINED.validation) == 12 + 36
    assert not PROFILED.images & (PRETRAINED.images | TRAINED.images | TRAINED.validation)
    assert not TRAINED.validation & (PRETRAINED.images | TRAINED.images)
    assert PRETRAINED.images < set(read_images(data / "cifar10/train4k_u8.npz").encoded)


def test_existing_artefacts_are_not_rebuilt(made: OtasArtefacts, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDAL_CACHE", str(made.folder.parent))
    trained = made.folder / BASE / "vit.safetensors"
    before = trained.stat().st_mtime_ns
    again = prepare(data, TINY)
    assert (again, trained.stat().st_mtime_ns) == (made, before)
    assert not (made.repository / BASE / "2").exists()
    other = dataclasses.replace(TINY, pretraining=FromNothing(CIFAR10, ImageTrainingSettings(), Variation()))
    with pytest.raises(ArtefactsMissing, match=r"benchmarks\.otas\.prepare"):
        load(data, other)


def test_both_forms_of_prompts_are_compared(made: OtasArtefacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_forms, "_ROUNDS", 2)
    forms = prompt_forms.compare(made)
    assert [(each.form, each.gamma, each.tokens) for each in forms] == [
        ("replaced", 0, 65), ("replaced", 1, 66), ("accumulated", 0, 65), ("accumulated", 1, 67),
    ]  # fmt: skip
    assert all(each.image_ms > 0 for each in forms)
    # Without prompts they are the same transformer with the same head.
    assert forms[0].accuracy == forms[2].accuracy
    report = Report("otas", True)
    prompt_forms.add(report, forms)
    assert len(report.measured["prompt_forms"]) == 4


def test_tasks_of_digits_divide_them_alike(tmp_path: Path) -> None:
    rows = {}
    for task in (DIGITS, NOISY, PARITY):
        of = images_of(task, None, tmp_path)
        rows[task] = read_images(of.train, of.labels)
    for task in (NOISY, PARITY):
        # So that no task's profile is measured on what the transformer was trained on.
        assert len(rows[task]) == len(rows[DIGITS]) == 180
    assert (rows[PARITY].truth == rows[DIGITS].truth % 2).all()
    assert (rows[NOISY].truth == rows[DIGITS].truth).all()
    seeds = {(each.settings.seed, each.settings.profiled) for how in (PHOTOGRAPHS, DIGITS_ALONE) for each in how.tasks}
    assert len(seeds) == 1


def test_recipes_have_three_sizes_and_three_tasks() -> None:
    for how, tasks in ((PHOTOGRAPHS, {CIFAR10, CLOTHING, DIGITS}), (DIGITS_ALONE, {DIGITS, PARITY, NOISY})):
        assert {each.task for each in how.tasks} == tasks
        assert [size.name for size in how.sizes] == [SMALL, BASE, LARGE]
        assert [size.gammas[0] < 0 for size in how.sizes] == [False, True, False]
    sizes = [size for size in PHOTOGRAPHS.sizes if isinstance(size, Pretrained)]
    assert [size.pixels for size in sizes] == sorted(14 * patches for patches in (5, 8, 12))
    alone = [size for size in DIGITS_ALONE.sizes if isinstance(size, Size)]
    assert all((size.config.image.shape, size.config.patches) == ((3, 32, 32), 64) for size in alone)
    assert DIGITS_ALONE.pretraining is not None
    assert DIGITS_ALONE.pretraining.task in {DIGITS, PARITY, NOISY}
