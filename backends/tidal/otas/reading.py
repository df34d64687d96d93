"""A request's images as pixel values, or the error that says what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tidal.errors import InvalidArgument
from tidal.otas.images import FloatArray, ImageDecoder
from tidal.requests import Array


def read_images(inputs: Mapping[str, Array], decoder: ImageDecoder, shape: tuple[int, int, int]) -> list[FloatArray]:
    """Pixel values of a request that carries either `image` or `pixel_values`, an array of `shape` a row.

    Args:
        inputs: `image` BYTES [rows, 1], or `pixel_values` FP32 [rows, channels, height, width].
        decoder: of encoded images.
        shape: channels, height and width that the model sees.

    Raises:
        InvalidArgument: names the input, what came and what is accepted.
    """
    if "image" in inputs and "pixel_values" in inputs:
        raise InvalidArgument("both image and pixel_values were sent; accepted is one of them")
    if "image" in inputs:
        images = inputs["image"]
        if images.ndim != 2 or images.shape[1] != 1:
            raise InvalidArgument(f"image has shape {list(images.shape)}; accepted is [rows, 1]")
        return [decoder.decode(content, f"image row {row}") for row, content in enumerate(images[:, 0])]
    pixels = inputs.get("pixel_values")
    if pixels is None:
        raise InvalidArgument("the request has neither image nor pixel_values; accepted is one of them")
    if pixels.shape[1:] != shape:
        raise InvalidArgument(f"pixel_values has shape {list(pixels.shape)}; accepted is [rows, {_listed(shape)}]")
    finite = np.isfinite(pixels).all(axis=(1, 2, 3))
    if not finite.all():
        raise InvalidArgument(f"pixel_values row {int(np.argmin(finite))} has values that are not finite")
    return list(pixels)


def _listed(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
