"""Decoding images to pixel values, compared with torch, and refusing invalid and hostile files."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tidal.errors import InvalidArgument
from tidal.otas.image_files import check_scans
from tidal.otas.images import ImageDecoder
from tidal.otas.manifest import ImageConfig

MOST_PIXELS, MOST_BYTES = 1 << 20, 40 << 20
IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
DRAW = np.random.default_rng(0)


def config(height: int = 32, width: int = 32, **changed: Any) -> ImageConfig:
    fields = {
        "channels": 3, "height": height, "width": width, "crop_pct": 0.875, "crop_mode": "center",
        "interpolation": "bicubic", **IMAGENET,
    }  # fmt: skip
    return ImageConfig(**fields | changed)


def decode(content: bytes, of: ImageConfig | None = None) -> Any:
    return ImageDecoder(of or config(), MOST_PIXELS, MOST_BYTES).decode(content)


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


def normalised(image: Image.Image, of: ImageConfig) -> Any:
    """Pixel values of an image that has the model's size, as torchvision computes them."""
    pixels = np.asarray(image).reshape(of.height, of.width, of.channels)
    values = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float().div(255)
    mean, std = (torch.tensor(each)[:, None, None] for each in (of.mean, of.std))
    return values.sub(mean).div(std).numpy()


class TestValues:
    @pytest.mark.parametrize("size", [(40, 90), (91, 40), (33, 36), (640, 427)])
    def test_the_shorter_side_is_scaled_and_the_centre_cropped(self, size: tuple[int, int]) -> None:
        image = photo(*size)
        shorter = min(size)
        scaled = tuple(36 if side == shorter else int(36 * side / shorter) for side in size)
        left, top = (round((side - 32) / 2) for side in scaled)
        expected = image.resize(scaled, Image.Resampling.BICUBIC).crop((left, top, left + 32, top + 32))
        np.testing.assert_array_equal(decode(encoded(image)), normalised(expected, config()))

    def test_squash_scales_both_sides(self) -> None:
        of = config(crop_mode="squash", crop_pct=1.0, interpolation="bilinear", height=24)
        image = photo(100, 50)
        expected = image.resize((32, 24), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(decode(encoded(image), of), normalised(expected, of))

    def test_a_model_that_is_not_square_gets_the_centre(self) -> None:
        of = config(height=24, width=48, crop_pct=1.0)
        image = photo(60, 60)  # scaled to 48 x 48
        expected = image.resize((48, 48), Image.Resampling.BICUBIC).crop((0, 12, 48, 36))
        np.testing.assert_array_equal(decode(encoded(image), of), normalised(expected, of))

    def test_an_image_of_the_models_size_is_not_resized(self) -> None:
        of = config(crop_pct=1.0)
        image = photo(32, 32)
        np.testing.assert_array_equal(decode(encoded(image), of), normalised(image, of))

    def test_a_grey_model_gets_grey_values(self) -> None:
        of = config(channels=1, crop_pct=1.0, mean=(0.5,), std=(0.5,))
        image = photo(32, 32)
        np.testing.assert_array_equal(decode(encoded(image), of), normalised(image.convert("L"), of))

    @pytest.mark.parametrize("mode", ["L", "LA", "1", "P", "RGBA", "CMYK"])
    def test_every_mode_is_accepted(self, mode: str) -> None:
        of, image = config(crop_pct=1.0), photo(32, 32, mode)
        kind = "JPEG" if mode == "CMYK" else "PNG"
        content = encoded(image, kind)
        expected = Image.open(io.BytesIO(content)).convert("RGB")
        np.testing.assert_array_equal(decode(content, of), normalised(expected, of))

    def test_16_bit_values_are_reduced_to_their_upper_8_bits(self) -> None:
        of = config(crop_pct=1.0)
        grey = DRAW.integers(0, 256, (32, 32), np.uint8)
        deep = Image.fromarray(grey.astype(np.uint16) * 256 + 255)
        expected = Image.fromarray(grey).convert("RGB")
        np.testing.assert_array_equal(decode(encoded(deep), of), normalised(expected, of))

    @pytest.mark.parametrize(("kind", "options"), [("JPEG", {"quality": 95}), ("WEBP", {"quality": 95})])
    def test_lossy_formats_are_close(self, kind: str, options: dict[str, Any]) -> None:
        image = photo(64, 64)
        assert np.abs(decode(encoded(image, kind, **options)) - decode(encoded(image))).mean() < 0.2

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_the_exif_orientation_is_applied(self, orientation: int) -> None:
        image = photo(40, 60)
        turns = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # the inverse transpositions of Pillow
        lying = image.transpose(Image.Transpose(turns[orientation])) if orientation > 1 else image
        exif = Image.Exif()
        exif[0x0112] = orientation
        np.testing.assert_array_equal(decode(encoded(lying, exif=exif)), decode(encoded(image)))

    def test_a_jpeg_with_an_embedded_preview_is_accepted(self) -> None:
        image = photo(64, 64)
        content = encoded(image, "MPO", save_all=True, append_images=[photo(16, 16)])
        np.testing.assert_array_equal(decode(content), decode(encoded(image, "JPEG")))


def png(width: int, height: int, rows: bytes) -> bytes:
    """A grey PNG with a size in its header."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def progressive(scans: int) -> bytes:
    """A progressive JPEG that repeats its last scan."""
    content = encoded(photo(32, 32), "JPEG", progressive=True)
    begin = content.rindex(b"\xff\xda")
    return content[:begin] + content[begin:-2] * scans + content[-2:]


def with_chunks(kind: bytes, content: bytes, count: int = 1) -> bytes:
    """A valid PNG with chunks before its pixels."""
    chunk = struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    sound = encoded(photo(20, 20))
    return sound[:33] + chunk * count + sound[33:]


def with_segments(segment: bytes, count: int) -> bytes:
    """A valid JPEG with bytes after its first marker."""
    sound = encoded(photo(20, 20), "JPEG")
    return sound[:2] + segment * count + sound[2:]


@cache
def bomb() -> bytes:
    """Compressed metadata that unfolds to 200 MiB."""
    return zlib.compress(bytes(200 << 20))


STILL = [photo(20, 20), photo(20, 20)]
MANY = [photo(20, 20)] * 300
NO_IMAGE = "is damaged or not an image; accepted:"
PIXELS = "has too many pixels; accepted: up to 1048576"
UNFOLDS = "has too large compressed metadata; accepted: up to 1048576 bytes per chunk and 67108864 in total"
METADATA = "has too much metadata; accepted: up to 8388608 bytes"
SEGMENTS = "is a JPEG of too many segments or fill bytes before its pixels; accepted: up to 1000 segments"
#: Contents are made when they are used: all together take seconds.
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "is empty; accepted: JPEG, PNG and WebP"),
    "text": (lambda: b"hello " * 100, "is damaged or not an image; accepted: JPEG, PNG and WebP"),
    "gif": (lambda: encoded(STILL[0], "GIF"), NO_IMAGE),
    "tiff": (lambda: encoded(STILL[0], "TIFF"), NO_IMAGE),
    "pdf": (lambda: encoded(STILL[0], "PDF"), NO_IMAGE),
    "postscript": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", NO_IMAGE),
    "cut jpeg": (lambda: encoded(photo(64, 64), "JPEG")[:-300], "is damaged: image file is truncated"),
    "cut png": (lambda: encoded(photo(64, 64))[:2000], "is damaged: "),
    "cut webp": (lambda: encoded(photo(64, 64), "WEBP")[:400], "is damaged"),
    "header alone": (lambda: encoded(photo(64, 64))[:33], "is damaged"),
    "too large": (lambda: png(1025, 1024, b""), "has 1025 x 1024 pixels; accepted: up to 1048576 in total"),
    "bomb": (lambda: png(60_000, 60_000, bytes(1 << 20)), PIXELS),
    "bomb of webp": (
        lambda: b"RIFF\x22\0\0\0WEBPVP8X\n\0\0\0\0\0\0\0\xfe\x3f\0\xfe\x3f\0VP8 \x04\0\0\0abcd\0\0\0\0",
        PIXELS,
    ),
    "thin": (lambda: png(2000, 20, b""), "has 2000 x 20 pixels; accepted: a ratio of the sides of up to 64"),
    "no pixels": (lambda: png(0, 0, b""), "is damaged"),
    "animated png": (lambda: encoded(STILL[0], "PNG", save_all=True, append_images=STILL[1:]), "is animated"),
    "animated webp": (lambda: encoded(STILL[0], "WEBP", save_all=True, append_images=STILL[1:]), "is animated"),
    "scans": (lambda: progressive(5000), "is a JPEG of 5009 scans; accepted: up to 100"),
    "png of 50,000 x 50,000": (lambda: png(50_000, 50_000, bytes(1 << 20)), PIXELS),
    "bytes": (lambda: encoded(photo(64, 64)) + bytes(MOST_BYTES), "has 41"),
    "many frames of gif": (lambda: encoded(STILL[0], "GIF", save_all=True, append_images=MANY), NO_IMAGE),
    "many frames of tiff": (lambda: encoded(STILL[0], "TIFF", save_all=True, append_images=MANY), NO_IMAGE),
    "many frames of webp": (lambda: encoded(STILL[0], "WEBP", save_all=True, append_images=MANY), "is animated"),
    "iTXt bomb": (lambda: with_chunks(b"iTXt", b"k\0\1\0\0\0" + bomb()), UNFOLDS),
    "zTXt bomb": (lambda: with_chunks(b"zTXt", b"k\0\0" + bomb()), UNFOLDS),
    "ICC bomb": (lambda: with_chunks(b"iCCP", b"k\0\0" + bomb()), UNFOLDS),
    "many zTXt": (lambda: with_chunks(b"zTXt", b"k\0\0" + zlib.compress(bytes(900_000)), 100), UNFOLDS),
    "large text of png": (lambda: with_chunks(b"tEXt", b"k\0" + bytes(9 << 20)), METADATA),
    "many chunks": (lambda: with_chunks(b"prVt", b"", 30_000), "is a PNG of too many chunks; accepted: up to 20000"),
    "metadata of jpeg": (lambda: with_segments(b"\xff\xe1\xff\xff" + bytes(65_533), 200), METADATA),
    "fill bytes of jpeg": (lambda: with_segments(b"\xff", 2_000_000), SEGMENTS),
    "junk of jpeg": (lambda: with_segments(b"\x00", 2_000_000), SEGMENTS),
    "escapes of jpeg": (lambda: with_segments(b"\xff\x00", 1_000_000), SEGMENTS),
    "markers of jpeg": (lambda: with_segments(b"\xff\xd0", 1_000_000), SEGMENTS),
    "empty segments of jpeg": (lambda: with_segments(b"\xff\xfe\x00\x02", 1_000_000), SEGMENTS),
}  # fmt: skip


class TestRefusals:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_invalid_and_hostile_files(self, name: str) -> None:
        content, message = HOSTILE[name]
        with pytest.raises(InvalidArgument) as caught:
            decode(content())
        assert str(caught.value).startswith(f"image {message}")
        assert len(str(caught.value)) < 200

    def test_scans_are_limited_by_their_total_pixels(self) -> None:
        content = progressive(60)
        check_scans(content, 10_000_000, "image")
        check_scans(encoded(photo(32, 32), "JPEG", progressive=True), 170_000_000, "image")
        with pytest.raises(InvalidArgument, match="of 69 scans over 50000000 pixels; accepted: up to 12 scans, or"):
            check_scans(content, 50_000_000, "image")

    def test_ordinary_metadata_is_accepted(self) -> None:
        profile = zlib.compress(bytes(500_000))
        decode(with_chunks(b"iCCP", b"k\0\0" + profile))
        decode(encoded(photo(64, 64), "JPEG", icc_profile=bytes(3_000_000), comment=b"x" * 60_000))
        decode(with_segments(b"\xff" * 3, 1))

    @settings(max_examples=80, deadline=None)
    @given(st.sampled_from(["JPEG", "PNG", "WEBP"]), st.data())
    def test_a_damaged_file_is_refused_or_decoded(self, kind: str, data: st.DataObject) -> None:
        content = bytearray(VALID[kind])
        for _ in range(data.draw(st.integers(1, 8))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        try:
            values = decode(bytes(content[: data.draw(st.integers(1, len(content)))]))
        except InvalidArgument as error:
            assert str(error).startswith("image ")
        else:
            assert values.shape == (3, 32, 32)
            assert values.dtype == np.float32
            assert np.isfinite(values).all()


VALID = {kind: encoded(photo(40, 40), kind, exif=Image.Exif()) for kind in ("JPEG", "PNG", "WEBP")}
