"""Images of smooth shapes and noise, and their files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

DRAW = np.random.default_rng(0)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def photo(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Smooth shapes and noise."""
    y, x = np.mgrid[:height, :width]
    bands = [127 + 90 * np.sin(x / (5 + k) + k) * np.cos(y / (7 - k)) for k in range(3)]
    noisy = np.stack(bands, -1) + DRAW.normal(size=(height, width, 3)) * 12
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).convert(mode)
