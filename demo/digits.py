"""A tiny vision transformer for the hand-written digits of scikit-learn, and two tasks beside it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

# Of the 1,797 digits, the last ones are shown to nothing before they are sent.
_SENT = 360
TASKS = {"digit": tuple("0123456789"), "parity": ("even", "odd")}


@dataclass(frozen=True, slots=True)
class Digit:
    """An image as a client sends it, and what it shows."""

    png: bytes
    shows: int


def unseen_digits(count: int) -> list[Digit]:
    """Images that nothing was trained on."""
    shades, shows = _digits()
    return [Digit(_png(shades[-row]), int(shows[-row])) for row in range(1, count + 1)]


def write_digits(folder: Path) -> None:
    """Write what tasks are trained on, a file each, and a few unseen digits as images."""
    folder.mkdir(parents=True, exist_ok=True)
    shades, shows = (array[:-_SENT] for array in _digits())
    for task, labels in TASKS.items():
        np.savez(folder / f"{task}.npz", images=shades, labels=shows % len(labels))
    for number, digit in enumerate(unseen_digits(3)):
        (folder / f"{number}.png").write_bytes(digit.png)


def write_image_folder(folder: Path, per_label: int = 60) -> None:
    """Write images of digits as `tidal tasks train` reads them: one folder per label, some PNG files in each.

    Args:
        folder: Folder to write.
        per_label: Number of images for each digit.
    """
    shades, shows = (array[:-_SENT] for array in _digits())
    for label in TASKS["digit"]:
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number, row in enumerate(np.flatnonzero(shows == int(label))[:per_label]):
            (folder / label / f"{number}.png").write_bytes(_png(shades[row]))


def train_transformer(data: Path, target: Path) -> None:
    """Train a transformer of 3 layers and 16 patches from nothing to tell digits apart, and write it.

    Args:
        data: where `write_digits` wrote.
        target: folder to write; nothing is done if it is there.
    """
    from tidal.otas.manifest import ImageConfig
    from tidal_builders.otas.training.images import read_images
    from tidal_builders.otas.training.pretrain import pretrain
    from tidal_builders.otas.training.settings import Settings
    from tidal_builders.otas.vit import WEIGHTS_FILE, VitConfig, write_vit

    if (target / WEIGHTS_FILE).exists():
        return
    image = ImageConfig(
        channels=1,
        height=8,
        width=8,
        crop_pct=1.0,
        crop_mode="squash",
        interpolation="bicubic",
        mean=(0.5,),
        std=(0.5,),
    )
    config = VitConfig(
        architecture="digits", image=image, patch=(2, 2), width=48, layers=3, heads=3, inner=96, pool="token"
    )
    settings = Settings(epochs=12, batch=16, rate=0.002)
    # As tasks divide their images: the accuracies that they are added with are of digits that this does not see either.
    seen, _ = read_images(data / "digit.npz").split(settings.profiled, settings.seed)
    with _one_thread():
        vit = pretrain(config, seen, settings)
    target.mkdir(parents=True, exist_ok=True)
    write_vit(target, vit)


def train_tasks(repository: Path, model: str, data: Path, done: Callable[[str], None]) -> None:
    """Train heads and prompts of the tasks that are not there yet, and add them to the built transformer.

    Args:
        repository: the model repository.
        model: the transformer's name in it.
        data: where `write_digits` wrote.
        done: told a line about each task.
    """
    from tidal.repository.entries import ModelEntry
    from tidal.tasks.folder import scan, tasks_folder
    from tidal_builders.otas.registration import TaskRegistration
    from tidal_builders.otas.training.settings import Settings

    entry = ModelEntry(repository / model)
    version = entry.latest()
    assert version is not None
    for task, labels in TASKS.items():
        if task in scan(tasks_folder(entry.folder)):
            continue
        settings = Settings(epochs=4, head_epochs=20, rate=0.005)
        with _one_thread():
            found = TaskRegistration(entry.folder, version, task).by_training(data / f"{task}.npz", labels, settings)
        shares = ", ".join(f"γ {gamma}: {share:.1%}" for gamma, share in found.accuracy.items())
        done(f"{task}: right on images that training did not see, by γ: {shares}")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads wait for each other at every layer, which in a model so small takes longer than the work itself."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Shades of 0 to 255 [images, 8, 8], and what each image shows."""
    found = load_digits()
    return (found.images * 255 / 16).astype(np.uint8), found.target


def _png(shades: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(shades).save(stream, "PNG")
    return stream.getvalue()
