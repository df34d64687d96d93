"""Labelled images of digits."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from tidal_builders.otas.training.images import LabelledImages


def digits(count: int, labels: tuple[str, ...] = tuple("0123456789")) -> LabelledImages:
    """Scans of handwritten digits of 8 x 8 pixels, whose classes are the digits modulo the number of labels."""
    found = load_digits()
    images = []
    for image in found.images[:count]:
        stream = io.BytesIO()
        Image.fromarray((image * 15).astype(np.uint8)).save(stream, "PNG")
        images.append(stream.getvalue())
    return LabelledImages("digits", images, found.target[:count].astype(np.int64) % len(labels), labels)
