"""Decoding images to pixel values, compared with torch, and refusing invalid and hostile files."""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.otas.hostile_images import (
    HOSTILE,
    MOST_BYTES,
    MOST_PIXELS,
    progressive,
    with_chunks,
    with_segments,
)
from tests.otas.photos import DRAW, encoded, photo
from tidal.errors import InvalidArgument
from tidal.otas.image_files import check_scans
from tidal.otas.images import ImageDecoder
from tidal.otas.manifest import ImageConfig

IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def config(height: int = 32, width: int = 32, **changed: Any) -> ImageConfig:
    fields = {
        "channels": 3, "height": height, "width": width, "crop_pct": 0.875, "crop_mode": "center",
        "interpolation": "bicubic", **IMAGENET,
    }  # fmt: skip
    return ImageConfig(**fields | changed)


def decode(content: bytes, of: ImageConfig | None = None) -> Any:
    return ImageDecoder(of or config(), MOST_PIXELS, MOST_BYTES).decode(content)


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
