"""Labelled images as files hold them."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from tidal.errors import InvalidArgument
from tidal.otas.images import DEFAULT_MAX_BYTES, ByteArray, ImageDecoder
from tidal.otas.manifest import ImageConfig
from tidal.tensor_file import read_bounded

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

LABELS_FILE = "labels.json"
_ENDINGS = {".jpg", ".jpeg", ".png", ".webp"}
# Of an image that is trained on: the server's own limit protects it, these files are the operator's.
_MOST_PIXELS = 1 << 28
# Of decoded images that are kept, rather than decoded again in every epoch.
_MOST_BYTES = 1 << 30
# What an .npz may unpack to: it is read as a whole.
_MOST_ARRAY_BYTES, _MOST_ARRAYS = 8 << 30, 100
_MOST_LABELS_BYTES = 8 << 20
_FORMS = (
    "accepted are a folder with a folder of images a label, or an .npz with `labels` and either `images` (bytes, [n, "
    "height, width] or [n, height, width, 3]) or `jpeg` and `offsets`"
)


@dataclass(frozen=True)
class LabelledImages:
    """Encoded images with the label of each.

    Attributes:
        origin: file or folder.
        encoded: JPEG, PNG or WebP.
        truth: [images] places in `labels`.
        labels: names of the classes.
    """

    origin: str
    encoded: Sequence[bytes]
    truth: IntArray
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.encoded)

    def part(self, rows: Sequence[int] | IntArray) -> LabelledImages:
        """Some of them."""
        return LabelledImages(self.origin, [self.encoded[row] for row in rows], self.truth[rows], self.labels)

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over images and labels."""
        found = hashlib.sha256(json.dumps(self.labels).encode())
        found.update(self.truth.tobytes())
        for content in self.encoded:
            found.update(hashlib.sha256(content).digest())
        return found.hexdigest()

    def divided(self, share: float, seed: int) -> tuple[LabelledImages, LabelledImages]:
        """The images to train on, and a random `share` to profile with (§V: a fifth).

        Raises:
            InvalidArgument: one of the parts would be empty.
        """
        order = np.random.default_rng(seed).permutation(len(self))
        count = round(share * len(self))
        if not 0 < count < len(self):
            raise InvalidArgument(f"{self.origin} has {len(self)} images, too few to keep a share of {share:g} apart")
        return self.part(np.sort(order[count:])), self.part(np.sort(order[:count]))


class Pixels:
    """Pixel values of labelled images, as the server would compute them. As many as fit into 1 GiB are decoded once,
    the others each time they are asked for."""

    def __init__(self, images: LabelledImages, config: ImageConfig) -> None:
        self._images, self._decoder = images, ImageDecoder(config, _MOST_PIXELS)
        channels, *sides = config.shape
        kept = min(len(images), _MOST_BYTES // math.prod(config.shape))
        self._kept: ByteArray = np.empty((kept, *sides, channels), np.uint8)
        self._decoded = np.zeros(kept, bool)

    def __len__(self) -> int:
        return len(self._images)

    def __call__(self, rows: Sequence[int] | IntArray) -> FloatArray:
        """[rows, channels, height, width]; raises as `shown`."""
        return self.values(self.shown(rows))

    def shown(self, rows: Sequence[int] | IntArray) -> ByteArray:
        """Before the values are normalised: [rows, height, width, channels], the caller's own.

        Raises:
            InvalidArgument: an image is damaged, and which.
        """
        return np.stack([self._one(row) for row in rows])

    def values(self, shown: ByteArray) -> FloatArray:
        """Normalised [rows, channels, height, width] of what `shown` gave."""
        return self._decoder.values(shown)

    def _one(self, row: int) -> ByteArray:
        if row < len(self._kept) and self._decoded[row]:
            kept: ByteArray = self._kept[row]
            return kept
        pixels = self._decoder.pixels(self._images.encoded[row], f"image {row} of {self._images.origin}")
        if row < len(self._kept):
            self._kept[row], self._decoded[row] = pixels, True
        return pixels


def read_images(path: Path, labels: Sequence[str] | None = None) -> LabelledImages:
    """Labelled images of a file or folder; labels are named by `labels`, else by the folders' names, else by
    `labels.json` beside the file, else by their numbers.

    Raises:
        InvalidArgument: it is missing, of no accepted form, or has labels that `labels` does not name.
    """
    try:
        if path.is_dir():
            return _of_folder(path, labels)
        _check_archive(path)
        with np.load(path, allow_pickle=False) as arrays:
            return _of_arrays(path, dict(arrays), labels)
    except MemoryError:
        raise InvalidArgument(f"{path} holds arrays that are larger than the memory; {_FORMS}") from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidArgument(f"{path} holds no labelled images ({error}); {_FORMS}") from None


def named_labels(path: Path) -> tuple[str, ...]:
    """Names of classes in a JSON file: a list, or one under "labels".

    Raises:
        InvalidArgument: it holds none.
    """
    try:
        found = json.loads(read_bounded(path, _MOST_LABELS_BYTES))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None
    names = found.get("labels") if isinstance(found, dict) else found
    if not isinstance(names, list) or not names or any(not isinstance(name, str) for name in names):
        raise InvalidArgument(f'{path} has no names of classes: expected a list of them, or one under "labels"')
    return tuple(names)


def _check_archive(path: Path) -> None:
    """Hold an .npz, which is a zip archive, to what it would unpack to."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise ValueError("it is neither a folder nor an .npz file")
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    size = sum(member.file_size for member in members)
    if len(members) > _MOST_ARRAYS or size > _MOST_ARRAY_BYTES:
        raise ValueError(
            f"it has {len(members)} arrays of {size} bytes in all; accepted are up to {_MOST_ARRAYS} arrays of "
            f"{_MOST_ARRAY_BYTES} bytes"
        )


def _of_folder(path: Path, labels: Sequence[str] | None) -> LabelledImages:
    files = {folder.name: sorted(f for f in folder.iterdir() if f.suffix.lower() in _ENDINGS)
             for folder in sorted(path.iterdir()) if folder.is_dir()}  # fmt: skip
    found = {name: images for name, images in files.items() if images}
    if not found:
        raise InvalidArgument(f"{path} has no folders of images; {_FORMS}")
    names = tuple(found) if labels is None else tuple(labels)
    if strange := sorted(set(found) - set(names)):
        raise InvalidArgument(f"{path} has the label '{strange[0]}', which is none of the task's: {', '.join(names)}")
    truth = [names.index(name) for name, images in found.items() for _ in images]
    encoded = [read_bounded(image, DEFAULT_MAX_BYTES) for images in found.values() for image in images]
    return LabelledImages(str(path), encoded, np.array(truth, np.int64), names)


def _of_arrays(path: Path, arrays: dict[str, npt.NDArray[np.generic]], labels: Sequence[str] | None) -> LabelledImages:
    truth = np.asarray(arrays["labels"]).astype(np.int64)
    if "jpeg" in arrays:
        content, offsets = arrays["jpeg"].tobytes(), np.asarray(arrays["offsets"]).astype(np.int64)
        encoded = [content[begin:end] for begin, end in itertools.pairwise(offsets)]
    else:
        encoded = [_png(np.asarray(image)) for image in arrays["images"]]
    beside = path.with_name(LABELS_FILE)
    if labels is None and beside.is_file():
        labels = named_labels(beside)
    names = tuple(map(str, range(int(truth.max()) + 1) if labels is None else labels))
    if len(encoded) != len(truth) or truth.min() < 0 or truth.max() >= len(names):
        raise InvalidArgument(
            f"{path} has {len(encoded)} images and {len(truth)} labels of {truth.min()} to {truth.max()}; the task has "
            f"{len(names)} labels"
        )
    return LabelledImages(str(path), encoded, truth, names)


def _png(image: npt.NDArray[np.generic]) -> bytes:
    """Without loss, so that all images take the way that a client's take."""
    if image.dtype != np.uint8:
        raise ValueError(f"images are {image.dtype}, not uint8")
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()
