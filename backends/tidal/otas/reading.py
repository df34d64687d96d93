"""Read the images of a request as pixel values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tidal.errors import InvalidArgument
from tidal.otas.images import FloatArray, ImageDecoder
from tidal.requests import Array


def read_images(inputs: Mapping[str, Array], decoder: ImageDecoder, shape: tuple[int, int, int]) -> list[FloatArray]:
    """Return the pixel values of a request's rows, each an array of `shape`.

    Args:
        inputs: Either `image` BYTES [rows, 1], or `pixel_values` FP32 [rows, channels, height, width].
        decoder: Decoder of encoded images.
        shape: Channels, height and width of the model's input.

    Raises:
        InvalidArgument: An input is not accepted; names the input, the value and what is accepted.
    """
    if "image" in inputs and "pixel_values" in inputs:
        raise InvalidArgument("the request has both image and pixel_values; accepted: one of them")
    if "image" in inputs:
        images = inputs["image"]
        if images.ndim != 2 or images.shape[1] != 1:
            raise InvalidArgument(f"image has shape {list(images.shape)}; accepted: [rows, 1]")
        return [decoder.decode(content, f"image row {row}") for row, content in enumerate(images[:, 0])]
    pixels = inputs.get("pixel_values")
    if pixels is None:
        raise InvalidArgument("the request has neither image nor pixel_values; accepted: one of them")
    if pixels.shape[1:] != shape:
        raise InvalidArgument(f"pixel_values has shape {list(pixels.shape)}; accepted: [rows, {_listed(shape)}]")
    finite = np.isfinite(pixels)
    if not finite.all():
        row = int(np.argmin(finite.all(axis=(1, 2, 3))))
        raise InvalidArgument(f"pixel_values row {row} has values that are not finite")
    return list(pixels)


def _listed(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
