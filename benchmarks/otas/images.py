"""Images of the live part's tasks: for training, and, disjoint from these, for clients to send."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from benchmarks.otas.live.artefacts import LiveTask
from benchmarks.otas.recipe import CIFAR10, CLOTHING, DIGITS, NOISY, PARITY
from tidal_builders.otas.training.images import read_images

_FILES = {
    CIFAR10: ("cifar10/train4k_u8.npz", "cifar10/dev2k_u8.npz"),
    CLOTHING: ("clothing_small/train_jpeg.npz", "clothing_small/dev_jpeg.npz"),
}
# Share of the digits that clients send.
_SENT = 0.25
# Standard deviation of the noise on digits, in shades of 0 to 255.
_NOISE = 70.0
_NAMES = {DIGITS: tuple("0123456789"), NOISY: tuple("0123456789"), PARITY: ("even", "odd")}

ByteArray = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Images:
    """A task's labelled images, in files that `tidal tasks train` reads.

    Attributes:
        task: Name of the task.
        train: File of the images for training and for measuring accuracies.
        sent: File of the images that clients send.
        labels: Names of the classes; None: those in the files' folder.
    """

    task: str
    train: Path
    sent: Path
    labels: tuple[str, ...] | None

    def live(self) -> LiveTask:
        """Read the images that clients send."""
        found = read_images(self.sent, self.labels)
        truth = tuple(found.labels[place] for place in found.truth)
        return LiveTask(self.task, tuple(found.encoded), truth)


def images_of(task: str, data: Path | None, folder: Path) -> Images:
    """Return the files of a task's images; those of digits are written if they do not exist.

    Args:
        task: Name of the task, one of the recipe's.
        data: Folder with real photographs.
        folder: Folder for the files of digits.
    """
    if task in _NAMES:
        train, sent = (folder / f"{task}-{part}.npz" for part in ("train", "sent"))
        if not sent.exists():
            _write_digits(task, train, sent)
        return Images(task, train, sent, _NAMES[task])
    assert data is not None
    train, sent = (data / file for file in _FILES[task])
    return Images(task, train, sent, None)


def digest(data: Path | None, tasks: tuple[str, ...]) -> str:
    """Return the hex SHA-256 of the photographs that training reads; digits are part of the code."""
    found = hashlib.sha256()
    for task in tasks:
        if data is not None and task in _FILES:
            found.update((data / _FILES[task][0]).read_bytes())
    return found.hexdigest()


def _write_digits(task: str, train: Path, sent: Path) -> None:
    """Split the digits in the same way for all tasks, so that no task is trained on what another one sends."""
    found = load_digits()
    shades = (found.images * 255 / 16).astype(np.uint8)
    draw = np.random.default_rng(0)
    order = draw.permutation(len(shades))
    if task == NOISY:
        shades = (shades + draw.normal(0, _NOISE, shades.shape)).clip(0, 255).astype(np.uint8)
    truth = found.target % 2 if task == PARITY else found.target
    apart = round(_SENT * len(order))
    train.parent.mkdir(parents=True, exist_ok=True)
    for file, rows in ((train, order[apart:]), (sent, order[:apart])):
        np.savez(file, images=shades[rows], labels=truth[rows])
