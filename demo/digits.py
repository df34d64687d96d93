"""A small vision transformer for scikit-learn's handwritten digits, and two tasks on it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from sklearn.datasets import load_digits

# The last of the 1,797 digits are held out: they are only sent to the server.
_HELD_OUT = 360
TASKS = {"digit": tuple("0123456789"), "parity": ("even", "odd")}


@dataclass(frozen=True, slots=True)
class Digit:
    """A PNG image and its true digit."""

    png: bytes
    shows: int


def unseen_digits(count: int) -> list[Digit]:
    """Return held-out images."""
    shades, shows = _digits()
    return [Digit(_png(shades[-row]), int(shows[-row])) for row in range(1, count + 1)]


def write_digits(folder: Path) -> None:
    """Write a file of training data per task, and three held-out images."""
    folder.mkdir(parents=True, exist_ok=True)
    shades, shows = (array[:-_HELD_OUT] for array in _digits())
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
    shades, shows = (array[:-_HELD_OUT] for array in _digits())
    for label in TASKS["digit"]:
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number, row in enumerate(np.flatnonzero(shows == int(label))[:per_label]):
            (folder / label / f"{number}.png").write_bytes(_png(shades[row]))


def train_transformer(data: Path, target: Path, epochs: int = 12) -> None:
    """Train a transformer of 3 layers and 16 patches on digits and write it, unless it exists.

    Args:
        data: Folder written by `write_digits`.
        target: Folder to write.
        epochs: Number of passes over the images.
    """
    from tidal.otas.manifest import ImageConfig
    from tidal_builders.otas.training.images import read_images
    from tidal_builders.otas.training.pretrain import pretrain
    from tidal_builders.otas.training.settings import ImageTrainingSettings
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
    settings = ImageTrainingSettings(epochs=epochs, batch=16, rate=0.002)
    # The same split as of the tasks: their accuracies are of images that this training does not use either.
    seen, _ = read_images(data / "digit.npz").split(settings.profiled, settings.seed)
    with _one_thread():
        vit = pretrain(config, seen, settings)
    target.mkdir(parents=True, exist_ok=True)
    write_vit(target, vit)


def train_tasks(repository: Path, model: str, data: Path, done: Callable[[str], None]) -> None:
    """Train the heads and prompts of missing tasks and add them to the built transformer.

    Args:
        repository: Model repository.
        model: Name of the transformer.
        data: Folder written by `write_digits`.
        done: Receives one line about each task.
    """
    from tidal.repository.entries import ModelEntry
    from tidal.tasks.folder import scan, tasks_folder
    from tidal_builders.otas.registration import TaskRegistration
    from tidal_builders.otas.training.settings import ImageTrainingSettings

    entry = ModelEntry(repository / model)
    version = entry.latest()
    assert version is not None
    for task, labels in TASKS.items():
        if task in scan(tasks_folder(entry.folder)):
            continue
        settings = ImageTrainingSettings(epochs=4, head_epochs=20, rate=0.005)
        with _one_thread():
            found = TaskRegistration(entry.folder, version, task).by_training(data / f"{task}.npz", labels, settings)
        shares = ", ".join(f"γ {gamma}: {share:.1%}" for gamma, share in found.accuracy.items())
        done(f"{task}: accuracy on held-out images: {shares}")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: for a model this small, synchronisation costs more than the computation."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return grey values of 0 to 255 [images, 8, 8], and the true digits [images]."""
    found = load_digits()
    return (found.images * 255 / 16).astype(np.uint8), found.target.astype(np.uint8)


def _png(shades: npt.NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(shades).save(stream, "PNG")
    return stream.getvalue()
