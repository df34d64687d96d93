"""Labelled images from files and folders."""

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
# Limit for training images, which come from the operator; servers have a limit of their own.
_MAX_PIXELS = 1 << 28
# Memory limit of decoded images that are cached rather than decoded again in every epoch.
_MAX_BYTES = 1 << 30
# Limits on the uncompressed content of an .npz, which is read as a whole.
_MAX_ARRAY_BYTES, _MAX_ARRAYS = 8 << 30, 100
_MAX_LABELS_BYTES = 8 << 20
_FORMS = (
    "accepted: a folder with one folder of images per label, or an .npz with `labels` and either `images` (bytes, [n, "
    "height, width] or [n, height, width, 3]) or `jpeg` and `offsets`"
)


@dataclass(frozen=True)
class LabelledImages:
    """Encoded images and their labels.

    Attributes:
        origin: File or folder that they were read from.
        encoded: Images as JPEG, PNG or WebP.
        truth: Index of each image's label in `labels`, of shape [images].
        labels: Names of the classes.
    """

    origin: str
    encoded: Sequence[bytes]
    truth: IntArray
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.encoded)

    def part(self, rows: Sequence[int] | IntArray) -> LabelledImages:
        """Return some of the images."""
        return LabelledImages(self.origin, [self.encoded[row] for row in rows], self.truth[rows], self.labels)

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over images and labels."""
        found = hashlib.sha256(json.dumps(self.labels).encode())
        found.update(self.truth.tobytes())
        for content in self.encoded:
            found.update(hashlib.sha256(content).digest())
        return found.hexdigest()

    def split(self, share: float, seed: int) -> tuple[LabelledImages, LabelledImages]:
        """Split at random into images to train on and images to measure accuracies on (§V: a fifth).

        Args:
            share: Share of the second part.
            seed: Random seed.

        Raises:
            InvalidArgument: One of the parts would be empty.
        """
        order = np.random.default_rng(seed).permutation(len(self))
        count = round(share * len(self))
        if not 0 < count < len(self):
            raise InvalidArgument(f"{self.origin} has {len(self)} images, too few to split off a share of {share:g}")
        return self.part(np.sort(order[count:])), self.part(np.sort(order[:count]))


class Pixels:
    """Pixel values of labelled images, as a server computes them; up to 1 GiB of decoded images are cached.

    Args:
        images: The images.
        config: Image preparation of the model.
    """

    def __init__(self, images: LabelledImages, config: ImageConfig) -> None:
        self._images, self._decoder = images, ImageDecoder(config, _MAX_PIXELS)
        channels, *sides = config.shape
        kept = min(len(images), _MAX_BYTES // math.prod(config.shape))
        self._kept: ByteArray = np.empty((kept, *sides, channels), np.uint8)
        self._decoded = np.zeros(kept, bool)

    def __len__(self) -> int:
        return len(self._images)

    def __call__(self, rows: Sequence[int] | IntArray) -> FloatArray:
        """Return normalised pixel values [rows, channels, height, width]; raises as `decoded`."""
        return self.values(self.decoded(rows))

    def decoded(self, rows: Sequence[int] | IntArray) -> ByteArray:
        """Return pixels before normalisation, of shape [rows, height, width, channels], which may be modified.

        Raises:
            InvalidArgument: An image is damaged; the message names it.
        """
        return np.stack([self._one(row) for row in rows])

    def values(self, decoded: ByteArray) -> FloatArray:
        """Normalise a result of `decoded` to [rows, channels, height, width]."""
        return self._decoder.values(decoded)

    def _one(self, row: int) -> ByteArray:
        if row < len(self._kept) and self._decoded[row]:
            kept: ByteArray = self._kept[row]
            return kept
        pixels = self._decoder.pixels(self._images.encoded[row], f"image {row} of {self._images.origin}")
        if row < len(self._kept):
            self._kept[row], self._decoded[row] = pixels, True
        return pixels


def read_images(path: Path, labels: Sequence[str] | None = None) -> LabelledImages:
    """Read labelled images.

    Args:
        path: File or folder of the images.
        labels: Names of the classes; None: the names of the folders, of `labels.json` in the same folder, or numbers.

    Raises:
        InvalidArgument: It is missing, has another format, or has labels that are not in `labels`.
    """
    try:
        if path.is_dir():
            return _read_folder(path, labels)
        _check_archive(path)
        with np.load(path, allow_pickle=False) as arrays:
            return _read_arrays(path, dict(arrays), labels)
    except MemoryError:
        raise InvalidArgument(f"{path} contains arrays that are larger than the memory; {_FORMS}") from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidArgument(f"{path} contains no labelled images ({error}); {_FORMS}") from None


def read_labels(path: Path) -> tuple[str, ...]:
    """Read names of classes from a JSON file, which is a list or has one under "labels".

    Raises:
        InvalidArgument: The file cannot be read or contains no names.
    """
    try:
        found = json.loads(read_bounded(path, _MAX_LABELS_BYTES))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None
    names = found.get("labels") if isinstance(found, dict) else found
    if not isinstance(names, list) or not names or any(not isinstance(name, str) for name in names):
        raise InvalidArgument(f'{path} has no names of classes: expected a list of them, or one under "labels"')
    return tuple(names)


def _check_archive(path: Path) -> None:
    """Check the uncompressed size of an .npz, which is a zip archive."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise ValueError("it is neither a folder nor an .npz file")
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    size = sum(member.file_size for member in members)
    if len(members) > _MAX_ARRAYS or size > _MAX_ARRAY_BYTES:
        raise ValueError(
            f"it has {len(members)} arrays of {size} bytes in total; accepted: up to {_MAX_ARRAYS} arrays of "
            f"{_MAX_ARRAY_BYTES} bytes"
        )


def _read_folder(path: Path, labels: Sequence[str] | None) -> LabelledImages:
    files = {folder.name: sorted(f for f in folder.iterdir() if f.suffix.lower() in _ENDINGS)
             for folder in sorted(path.iterdir()) if folder.is_dir()}  # fmt: skip
    found = {name: images for name, images in files.items() if images}
    if not found:
        raise InvalidArgument(f"{path} has no folders of images; {_FORMS}")
    names = tuple(found) if labels is None else tuple(labels)
    if unknown := sorted(set(found) - set(names)):
        raise InvalidArgument(
            f"{path} has the label '{unknown[0]}', which the task does not have; accepted: {', '.join(names)}"
        )
    truth = [names.index(name) for name, images in found.items() for _ in images]
    encoded = [read_bounded(image, DEFAULT_MAX_BYTES) for images in found.values() for image in images]
    return LabelledImages(str(path), encoded, np.array(truth, np.int64), names)


def _read_arrays(
    path: Path, arrays: dict[str, npt.NDArray[np.generic]], labels: Sequence[str] | None
) -> LabelledImages:
    truth = np.asarray(arrays["labels"]).astype(np.int64)
    if "jpeg" in arrays:
        content, offsets = arrays["jpeg"].tobytes(), np.asarray(arrays["offsets"]).astype(np.int64)
        encoded = [content[begin:end] for begin, end in itertools.pairwise(offsets)]
    else:
        encoded = [_png(np.asarray(image)) for image in arrays["images"]]
    labels_file = path.with_name(LABELS_FILE)
    if labels is None and labels_file.is_file():
        labels = read_labels(labels_file)
    names = tuple(map(str, range(int(truth.max()) + 1) if labels is None else labels))
    if len(encoded) != len(truth) or truth.min() < 0 or truth.max() >= len(names):
        raise InvalidArgument(
            f"{path} has {len(encoded)} images and {len(truth)} labels of {truth.min()} to {truth.max()}; the task has "
            f"{len(names)} labels"
        )
    return LabelledImages(str(path), encoded, truth, names)


def _png(image: npt.NDArray[np.generic]) -> bytes:
    """Encode without loss, so that all images are decoded in the same way as a client's."""
    if image.dtype != np.uint8:
        raise ValueError(f"images have type {image.dtype}; accepted: uint8")
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()
