"""Decode images to pixel values as the source model's config specifies; safe for any bytes that a client sends.

A file is decoded only after its size, metadata and header were checked against limits, so that no file takes much
memory or time, for example by decompressing to gigabytes, or as a JPEG with thousands of scans.
"""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, UnidentifiedImageError
from PIL.PngImagePlugin import MAX_TEXT_CHUNK, MAX_TEXT_MEMORY

from tidal.errors import InvalidArgument
from tidal.otas.image_files import check_metadata, check_scans
from tidal.otas.manifest import ImageConfig

FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]

FORMATS = ("JPEG", "PNG", "WEBP")
DEFAULT_MAX_BYTES = 64 << 20
_ACCEPTED = "accepted: JPEG, PNG and WebP"
# A larger ratio of the sides would scale the image to more pixels than it has.
_MAX_ASPECT = 64
_ORIENTATION = 0x0112
# Transposition that makes an image upright, by its EXIF orientation.
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
    """Decodes images for one model; any thread may call it, and others run while it decodes.

    Args:
        config: Image preparation of the model.
        max_pixels: Maximum number of pixels of an image before it is scaled.
        max_bytes: Maximum size of an encoded image, in bytes.
    """

    def __init__(self, config: ImageConfig, max_pixels: int, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._config = config
        self._max_bytes = max_bytes
        self._max_pixels = max_pixels
        # Pixel value of each byte, [channels, 256], by the same float32 operations as the source's.
        unit = np.arange(256, dtype=np.float32) / np.float32(255)
        mean, std = (np.array(each, np.float32)[:, None] for each in (config.mean, config.std))
        self._values: FloatArray = (unit - mean) / std

    def decode(self, content: bytes, name: str = "image") -> FloatArray:
        """Return pixel values [channels, height, width] of an encoded image; see `pixels`."""
        return self.values(self.pixels(content, name))

    def pixels(self, content: bytes, name: str = "image") -> ByteArray:
        """Decode, scale and crop an image, without normalising its values.

        An image is rotated as its EXIF data specify; transparency is dropped, as in the source's own preparation.

        Args:
            content: Content of a JPEG, PNG or WebP file.
            name: Name of the image, for errors.

        Returns:
            Array of shape [height, width, channels].

        Raises:
            InvalidArgument: The file has another format, is damaged or animated, or exceeds a limit.
        """
        image = self._open(content, name)
        try:
            decoded = _rotate_upright(_to_eight_bit(image))
        except MemoryError:
            raise
        except Exception as error:  # decoders raise exceptions of any type
            raise InvalidArgument(f"{name} is damaged: {_short(error)}") from None
        config = self._config
        return np.asarray(prepare_image(decoded, config)).reshape(config.height, config.width, config.channels)

    def values(self, pixels: ByteArray) -> FloatArray:
        """Normalise one or several results of `pixels` to [..., channels, height, width]."""
        planes = [values[pixels[..., channel]] for channel, values in enumerate(self._values)]
        return np.stack(planes, axis=-3)

    def _open(self, content: bytes, name: str) -> ImageFile.ImageFile:
        """Open an image and check its header against the limits, without decoding pixels."""
        if not content:
            raise InvalidArgument(f"{name} is empty; {_ACCEPTED}")
        if len(content) > self._max_bytes:
            raise InvalidArgument(
                f"{name} has {len(content)} bytes; accepted: up to {self._max_bytes}, the model's max_image_mb"
            )
        check_metadata(content, name)
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)
        except Image.DecompressionBombError:
            raise InvalidArgument(f"{name} has too many pixels; accepted: up to {self._max_pixels}") from None
        except UnidentifiedImageError:
            raise InvalidArgument(f"{name} is damaged or not an image; {_ACCEPTED}") from None
        except Exception as error:
            if "MAX_TEXT" in str(error):  # Pillow's limits on compressed chunks of a PNG
                raise InvalidArgument(
                    f"{name} has too large compressed metadata; accepted: up to {MAX_TEXT_CHUNK} bytes per chunk and "
                    f"{MAX_TEXT_MEMORY} in total, uncompressed"
                ) from None
            raise InvalidArgument(f"{name} is damaged: {_short(error)}") from None
        width, height = image.size
        if width * height > self._max_pixels:
            raise InvalidArgument(f"{name} has {width} x {height} pixels; accepted: up to {self._max_pixels} in total")
        if max(width, height) > _MAX_ASPECT * min(width, height):
            raise InvalidArgument(
                f"{name} has {width} x {height} pixels; accepted: a ratio of the sides of up to {_MAX_ASPECT}"
            )
        check_scans(content, width * height, name)
        # A photograph followed by a preview of itself (MPO) is a still image.
        if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
            raise InvalidArgument(f"{name} is animated; accepted: still images")
        return image


def prepare_image(image: Image.Image, config: ImageConfig) -> Image.Image:
    """Convert, scale and crop an image to the model's mode and size."""
    image = image.convert("RGB" if config.channels == 3 else "L")
    size = _scaled_size(image.size, config)
    if size != image.size:
        image = image.resize(size, Image.Resampling[config.interpolation.upper()])
    # Rounded half to even, as in the source's own preparation.
    left, top = (round((have - want) / 2) for have, want in zip(size, (config.width, config.height), strict=True))
    return image.crop((left, top, left + config.width, top + config.height))


def _scaled_size(size: tuple[int, int], config: ImageConfig) -> tuple[int, int]:
    """Return width and height before the crop."""
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


def _to_eight_bit(image: Image.Image) -> Image.Image:
    """Decode an image; of 16-bit grey values the upper 8 bits are kept, where Pillow would clip at 255."""
    image.load()
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))


def _rotate_upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF data
        return image
    turn = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _short(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 120 else f"{text[:119]}…"
