"""Encoded images as pixel values, the way the source model's own config says; whatever bytes a client sends.

A file is decoded only after its size, its parts and its header were held to the limits, so that no file takes much
memory or time: not one that unfolds to gigabytes, nor a JPEG of thousands of passes over all its pixels.
"""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, UnidentifiedImageError
from PIL.PngImagePlugin import MAX_TEXT_CHUNK, MAX_TEXT_MEMORY

from tidal.errors import InvalidArgument
from tidal.otas.image_files import check_parts, check_scans
from tidal.otas.manifest import ImageConfig

FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]

FORMATS = ("JPEG", "PNG", "WEBP")
DEFAULT_MOST_BYTES = 64 << 20
_ACCEPTED = "accepted are JPEG, PNG and WebP"
# A longer side would be scaled to more pixels than the image has.
_MOST_ASPECT = 64
_ORIENTATION = 0x0112
# What makes an image upright, by its EXIF orientation.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ImageDecoder:
    """Decodes images for one model. May be called from any thread, and lets others run while it decodes.

    Args:
        config: the model's.
        most_pixels: of an image, however few of them the model sees.
        most_bytes: of an encoded image.
    """

    def __init__(self, config: ImageConfig, most_pixels: int, most_bytes: int = DEFAULT_MOST_BYTES) -> None:
        self._config = config
        self._most_bytes = most_bytes
        self._most_pixels = most_pixels
        # [channels, 256]: the pixel value of every byte, by the same steps in float32 as the source's.
        unit = np.arange(256, dtype=np.float32) / np.float32(255)
        mean, std = (np.array(each, np.float32)[:, None] for each in (config.mean, config.std))
        self._values: FloatArray = (unit - mean) / std

    def decode(self, content: bytes, name: str = "image") -> FloatArray:
        """Pixel values [channels, height, width] of an encoded image; see `pixels`."""
        return self.values(self.pixels(content, name))

    def pixels(self, content: bytes, name: str = "image") -> ByteArray:
        """An encoded image as the model sees it, before its values are normalised: [height, width, channels].

        An image is turned upright where its EXIF data say how; transparency is dropped, as the source's own
        preparation does.

        Args:
            content: a JPEG, PNG or WebP file.
            name: of the image, for errors.

        Raises:
            InvalidArgument: it is none of these, damaged, animated, or larger than accepted.
        """
        image = self._opened(content, name)
        try:
            decoded = _upright(_eight_bit(image))
        except MemoryError:
            raise
        except Exception as error:  # decoders raise whatever they stumble over
            raise InvalidArgument(f"{name} is damaged: {_short(error)}") from None
        config = self._config
        return np.asarray(prepared(decoded, config)).reshape(config.height, config.width, config.channels)

    def values(self, pixels: ByteArray) -> FloatArray:
        """Normalised [..., channels, height, width] of what `pixels` gives, of one image or of several."""
        planes = [values[pixels[..., channel]] for channel, values in enumerate(self._values)]
        return np.stack(planes, axis=-3)

    def _opened(self, content: bytes, name: str) -> ImageFile.ImageFile:
        """The image with its header read and held to the limits, none of its pixels decoded."""
        if not content:
            raise InvalidArgument(f"{name} is empty; {_ACCEPTED}")
        if len(content) > self._most_bytes:
            raise InvalidArgument(
                f"{name} has {len(content)} bytes; accepted are up to {self._most_bytes}, the model's max_image_mb"
            )
        check_parts(content, name)
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)
        except Image.DecompressionBombError:
            raise InvalidArgument(f"{name} has too many pixels; accepted are up to {self._most_pixels}") from None
        except UnidentifiedImageError:
            raise InvalidArgument(f"{name} is damaged or no image; {_ACCEPTED}") from None
        except Exception as error:
            if "MAX_TEXT" in str(error):  # of Pillow: its bounds on compressed chunks of a PNG
                raise InvalidArgument(
                    f"{name} has metadata that unfolds to more than the {MAX_TEXT_CHUNK} bytes a part, or "
                    f"{MAX_TEXT_MEMORY} in all, that are accepted"
                ) from None
            raise InvalidArgument(f"{name} is damaged: {_short(error)}") from None
        width, height = image.size
        if width * height > self._most_pixels:
            raise InvalidArgument(
                f"{name} has {width} x {height} pixels; accepted are up to {self._most_pixels} of them"
            )
        if max(width, height) > _MOST_ASPECT * min(width, height):
            raise InvalidArgument(
                f"{name} has {width} x {height} pixels; accepted are sides of up to {_MOST_ASPECT} times each other"
            )
        check_scans(content, width * height, name)
        # A photograph with a smaller copy of itself behind it (MPO) is a still image.
        if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
            raise InvalidArgument(f"{name} is animated; accepted are still images")
        return image


def prepared(image: Image.Image, config: ImageConfig) -> Image.Image:
    """An image of the model's mode and size, scaled and cut as its config says."""
    image = image.convert("RGB" if config.channels == 3 else "L")
    size = _scaled_size(image.size, config)
    if size != image.size:
        image = image.resize(size, Image.Resampling[config.interpolation.upper()])
    # Rounded as the source's own preparation rounds: to the even number.
    left, top = (round((have - want) / 2) for have, want in zip(size, (config.width, config.height), strict=True))
    return image.crop((left, top, left + config.width, top + config.height))


def _scaled_size(size: tuple[int, int], config: ImageConfig) -> tuple[int, int]:
    """Width and height before the cut."""
    width, height = size
    to_height, to_width = config.scaled
    if config.crop_mode == "squash":
        return to_width, to_height
    if to_height == to_width:
        shorter, longer = min(size), max(size)
        other = to_width * longer // shorter
        return (to_width, other) if width <= height else (other, to_width)
    ratio = min(height / to_height, width / to_width)
    return round(width / ratio), round(height / ratio)


def _eight_bit(image: Image.Image) -> Image.Image:
    """The decoded image; one of 16 bits a grey value by the upper 8 of them, where Pillow would cut at 255."""
    image.load()
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged data beside the image
        return image
    turn = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _short(error: Exception) -> str:
    said = str(error) or type(error).__name__
    return said if len(said) <= 120 else f"{said[:119]}…"
