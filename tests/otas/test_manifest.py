"""Validation of manifests, and how a runner divides a batch among engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import ValidationError

from tests.otas.content import CONTENT
from tidal.errors import InvalidArgument
from tidal.otas.manifest import FEATURES, PIXELS, PROMPTS, OtasManifest
from tidal.otas.runner import GammaEngines, OtasRunner, split_batch


class Recorded:
    """An engine that sums each image, and records the sizes of its batches."""

    inputs = outputs = ()

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def run(self, inputs: Any) -> dict[str, npt.NDArray[Any]]:
        self.sizes.append(len(inputs[PIXELS]))
        features = inputs[PIXELS].sum(axis=(1, 2, 3))
        if PROMPTS in inputs:
            features = features + inputs[PROMPTS].sum(axis=(1, 2, 3))
        return {FEATURES: np.stack([features, features], axis=1)}


def images(count: int) -> npt.NDArray[np.float32]:
    return np.arange(count, dtype=np.float32)[:, None, None, None] * np.ones((1, 1, 4, 4), np.float32)


@pytest.fixture
def runner() -> tuple[OtasRunner, dict[int, Recorded]]:
    one, three, whole = (Recorded() for _ in range(3))
    engines = {-1: GammaEngines({1: one, 3: three}, None), 0: GammaEngines({1: one}, whole), 2: GammaEngines({}, whole)}
    return OtasRunner(OtasManifest.model_validate(CONTENT), engines), {1: one, 3: three, 0: whole}


def test_engines_open_with_the_shapes_of_their_gamma() -> None:
    manifest = OtasManifest.model_validate(CONTENT)
    shapes = [manifest.artifact(engine, Path("/v")).shapes for engine in manifest.engines]
    assert shapes[1] == {PIXELS: (3, 1, 4, 4)}
    assert shapes[2] == {PIXELS: ((1, 8), 1, 4, 4)}
    assert shapes[3] == {PIXELS: ((1, 8), 1, 4, 4), PROMPTS: ((1, 8), 3, 2, 2)}
    several = OtasManifest.model_validate(
        CONTENT
        | {"gammas": (0, 2, 4), "verification": [entry | {"gamma": gamma} for entry, gamma in
           zip(CONTENT["verification"], (0, 2, 4), strict=True)],
           "profile": CONTENT["profile"] | {"gammas": (0, 2, 4)},
           "engines": [CONTENT["engines"][2], {"gammas": (2, 4), "file": "c", "batch": None}]}
    )  # fmt: skip
    assert several.artifact(several.engines[1], Path("/v")).shapes[PROMPTS] == (
        (1, 8), 3, (2, 4), 2
    )  # fmt: skip
    assert several.engines_of(4) == (several.engines[1],)


def test_a_batch_is_divided_among_engines_of_fixed_sizes(runner: tuple[OtasRunner, dict[int, Recorded]]) -> None:
    found, engines = runner
    features = found.run(-1, images(8))
    np.testing.assert_array_equal(features[:, 0], 16 * np.arange(8))
    assert (engines[3].sizes, engines[1].sizes) == ([3, 3], [1, 1])
    found.run(0, images(1))
    found.run(0, images(7))
    assert (engines[1].sizes, engines[0].sizes) == ([1, 1, 1], [7])
    assert split_batch(11, [1, 2, 8]) == [8, 2, 1]


def test_each_row_gets_its_own_prompts(runner: tuple[OtasRunner, dict[int, Recorded]]) -> None:
    prompts = np.arange(3, dtype=np.float32)[:, None, None, None] * np.ones((1, 3, 2, 2), np.float32)
    features = runner[0].run(2, images(3), prompts)
    np.testing.assert_array_equal(features[:, 1], (16 + 12) * np.arange(3))


def test_batches_without_an_engine_are_refused(runner: tuple[OtasRunner, dict[int, Recorded]]) -> None:
    found, _ = runner
    prompts = np.zeros((1, 3, 2, 2), np.float32)
    for arguments, message in [
        ((1, images(1)), "γ is 1; accepted: -1, 0, 2"),
        ((0, images(9)), "the batch has 9 images; accepted: 1 to 8"),
        ((0, images(0)), "the batch has 0 images"),
        ((2, images(1)), "prompts have shape None"),
        ((0, images(1), prompts), "γ 0 takes None"),
        ((2, images(2), prompts), "for each of 2 images"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            found.run(*arguments)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gammas": (-1, 2)}, "include 0"),
        ({"engines": CONTENT["engines"][1:]}, "γ -1 has no engine that runs one image"),
        ({"engines": CONTENT["engines"][:3]}, "γ 2 has no engine"),
        ({"engines": [*CONTENT["engines"], {"gammas": (0,), "file": "x", "batch": 9}]}, "sizes up to 8"),
        ({"engines": [*CONTENT["engines"], {"gammas": (5,), "file": "x", "batch": 1}]}, "must run only γ of gammas"),
        ({"engines": [{"gammas": (-1, 0), "file": "x", "batch": 1}]}, "one γ, or several above 0"),
        ({"verification": CONTENT["verification"][:2]}, "one entry per γ"),
        ({"max_batch": 9}, "the profile must cover"),
    ],
)
def test_inconsistent_manifests_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        OtasManifest.model_validate(CONTENT | changed)


def test_the_scaled_size_follows_from_crop_pct() -> None:
    image = OtasManifest.model_validate(CONTENT).image
    assert (image.scaled, image.shape) == ((4, 4), (1, 4, 4))
    large = image.model_copy(update={"height": 224, "width": 224, "crop_pct": 0.875})
    assert large.scaled == (256, 256)
    with pytest.raises(ValidationError, match="mean and std must have 1 values"):
        type(image).model_validate(image.model_dump() | {"mean": (0.5, 0.5)})


def test_warm_up_runs_every_engine(runner: tuple[OtasRunner, dict[int, Recorded]]) -> None:
    model, engines = runner
    model.warm_up(0)
    assert [engines[key].sizes for key in (1, 3, 0)] == [[1, 1], [3], [1]]
    model.warm_up(60)
    # At γ 0 one image runs on the fixed engine, so the other engine runs a single image only at γ 2.
    assert sorted(engines[0].sizes) == sorted([1, 1, *(2 * [*range(2, 9)])])
