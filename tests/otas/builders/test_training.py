"""Training tasks on a frozen transformer, pretraining, and reading labelled images."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from testing import tiny_vision as tiny
from testing.vits import tiny_config, tiny_vit
from tests.otas.builders.digits import digits
from tests.otas.builders.trainings import form_of, same
from tidal.errors import InvalidArgument
from tidal.otas.images import ImageDecoder
from tidal.otas.runner import open_runner
from tidal_builders.otas.training.accuracy import measure_accuracy
from tidal_builders.otas.training.gamma import TrainedEpoch
from tidal_builders.otas.training.images import Pixels, read_images
from tidal_builders.otas.training.pretrain import Variation, pretrain
from tidal_builders.otas.training.settings import ImageTrainingSettings
from tidal_builders.otas.training.train import train_task
from tidal_builders.otas.transformer import load_transformer

pytestmark = pytest.mark.slow

QUICK = ImageTrainingSettings(epochs=3, batch=64, rate=0.01)


def test_a_pretrained_transformer_serves_trained_tasks(tmp_path: Path) -> None:
    config = tiny_config(size=8, channels=1, patch=(2, 2), width=32, inner=64, heads=4)
    vit = pretrain(config, digits(700), ImageTrainingSettings(epochs=6, rate=0.005))
    tiny.build(tmp_path / "r", tiny.write_source(tmp_path / "source", vit), gammas=[-6, 0, 2], static_batches=[])
    manifest = tiny.manifest_of(tmp_path / "r")
    trained, unseen = digits(1000, ("even", "odd")).split(0.2, seed=0)
    model = load_transformer(vit)
    task = train_task(
        model, manifest.base, manifest, trained, ImageTrainingSettings(epochs=4, rate=0.01), tmp_path / "work"
    ).parameters
    accuracy = measure_accuracy(open_runner(manifest, tmp_path / "r/vision/1"), manifest, task, unseen)
    assert (len(trained), len(unseen)) == (800, 200)
    assert set(accuracy) == {-6, 0, 2}
    assert accuracy[0] > 0.8
    assert accuracy[2] > 0.8
    assert 0.5 < accuracy[-6] <= 1
    # Training the task left the transformer unchanged.
    for name, tensor in model.state_dict().items():
        assert (tensor == vit.tensors[name]).all()


def test_prompts_improve_on_a_head_alone(tmp_path: Path) -> None:
    vit = tiny_vit(size=8, channels=1)
    images = digits(128, ("even", "odd"))
    task = train_task(
        load_transformer(vit), "b", form_of(vit, (0, 2)), images, ImageTrainingSettings(epochs=40, rate=0.03), tmp_path
    ).parameters
    pixels = Pixels(images, vit.config.image)(range(len(images)))
    model = load_transformer(vit)
    right = {}
    for gamma in (0, 2):
        prompts = torch.from_numpy(np.stack([task.prompts[2]] * len(images))) if gamma else None
        with torch.inference_mode():
            features = model(gamma, torch.from_numpy(pixels), prompts).numpy()
        right[gamma] = float((task.logits(gamma, features).argmax(1) == images.truth).mean())
    assert right[2] > right[0] + 0.05


def test_resumed_training_gives_the_same_result(tmp_path: Path) -> None:
    vit = tiny_vit(size=8, channels=1, layers=1)
    images, form = digits(96), form_of(vit, (0, 2))
    whole = train_task(load_transformer(vit), "b", form, images, QUICK, tmp_path / "whole")

    def killed(finished: TrainedEpoch) -> None:
        if finished.gamma == 2 and finished.share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_task(load_transformer(vit), "b", form, images, QUICK, tmp_path / "part", killed)
    reported: list[TrainedEpoch] = []
    again = train_task(load_transformer(vit), "b", form, images, QUICK, tmp_path / "part", reported.append)
    assert same(whole.parameters, again.parameters)
    assert whole.epochs == again.epochs == {0: 3, 2: 3}
    # One epoch was left.
    assert [(each.gamma, each.epoch, each.ended) for each in reported] == [(0, 3, True), (2, 3, False), (2, 3, True)]
    other = train_task(load_transformer(vit), "b", form, images, dataclasses.replace(QUICK, seed=1), tmp_path / "part")
    assert not same(whole.parameters, other.parameters)


def test_resumed_pretraining_gives_the_same_result(tmp_path: Path) -> None:
    config, images = tiny_config(size=8, channels=1), digits(96)
    how = {"variation": Variation(mirror=True, shift=1, seen=0.5)}
    whole = pretrain(config, images, QUICK, **how)

    def killed(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(config, images, QUICK, killed, **how, checkpoint=tmp_path / "epoch")
    reported: list[float] = []
    again = pretrain(config, images, QUICK, reported.append, **how, checkpoint=tmp_path / "epoch")
    assert again.digest == whole.digest
    assert reported == [1.0]
    assert pretrain(config, images, QUICK).digest != whole.digest


def test_images_are_augmented_as_configured() -> None:
    shown = np.arange(1, 2 * 4 * 4 + 1, dtype=np.uint8).reshape(2, 4, 4, 1).repeat(100, axis=0)
    draw = np.random.default_rng(0)
    assert (Variation().apply(shown, draw) == shown).all()
    mirrored = Variation(mirror=True).apply(shown, draw)
    turned = (mirrored == shown[:, :, ::-1]).all(axis=(1, 2, 3))
    assert (turned | (mirrored == shown).all(axis=(1, 2, 3))).all()
    assert 60 < turned.sum() < 140
    moved = Variation(shift=1).apply(shown, draw)
    padded = np.pad(shown[0], ((1, 1), (1, 1), (0, 0)))
    places = {padded[y : y + 4, x : x + 4].tobytes() for y in range(3) for x in range(3)}
    assert {image.tobytes() for image in moved[:100]} == places

    some = Variation(seen=0.5).patches(5, 16, draw)
    assert some is not None
    assert some.shape == (5, 8)
    assert all(len(set(row)) == 8 and set(row) <= set(range(16)) for row in some.tolist())
    assert Variation().patches(5, 16, draw) is None
    with pytest.raises(InvalidArgument, match="seen must be above 0"):
        Variation(seen=0)


def test_heads_without_prompts_may_have_their_own_number_of_epochs(tmp_path: Path) -> None:
    vit = tiny_vit(size=8, channels=1, layers=1)
    reported: list[TrainedEpoch] = []
    settings = dataclasses.replace(QUICK, epochs=1, head_epochs=4)
    form = form_of(vit, (-2, 0, 2))
    train_task(load_transformer(vit), "b", form, digits(96), settings, tmp_path, reported.append)
    shares = [(each.gamma, each.share) for each in reported if each.share < 1]
    assert shares == [(g, share) for g in (0, -2) for share in (0.25, 0.5, 0.75)]
    assert settings.described()["head_epochs"] == "4"
    assert "head_epochs" not in QUICK.described()


def test_decoded_images_are_kept_within_the_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    pixels_of = ImageDecoder.pixels

    def counted(self: ImageDecoder, content: bytes, name: str = "image") -> Any:
        decoded.append(name)
        return pixels_of(self, content, name)

    monkeypatch.setattr(ImageDecoder, "pixels", counted)
    monkeypatch.setattr("tidal_builders.otas.training.images._MAX_BYTES", 2 * 8 * 8)
    config = tiny_config(size=8, channels=1).image
    images = digits(3)
    pixels = Pixels(images, config)
    first, again = pixels([0, 1, 2]), pixels([2, 1, 0])
    assert [name.split()[1] for name in decoded] == ["0", "1", "2", "2"]
    np.testing.assert_array_equal(first, again[::-1])
    np.testing.assert_array_equal(first[1], ImageDecoder(config, 100).decode(images.encoded[1]))


def write_folder(folder: Path) -> None:
    for name, shade in (("dark", 10), ("light", 240)):
        (folder / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (9, 7), (shade,) * 3).save(folder / name / f"{number}.png")
        (folder / name / "notes.txt").write_text("not an image")


def test_images_of_folders_and_arrays(tmp_path: Path) -> None:
    write_folder(tmp_path / "f")
    found = read_images(tmp_path / "f")
    assert (len(found), found.labels, found.truth.tolist()) == (6, ("dark", "light"), [0, 0, 0, 1, 1, 1])
    turned = read_images(tmp_path / "f", ["light", "dark", "grey"])
    assert (turned.truth.tolist(), turned.labels) == ([1, 1, 1, 0, 0, 0], ("light", "dark", "grey"))
    values = Pixels(found, tiny_config(size=8).image)([0, 5])
    assert values.shape == (2, 3, 8, 8)
    np.testing.assert_allclose(values[:, 0, 0, 0], np.array([10, 240]) / 255 * 2 - 1, atol=1e-6)

    images = np.stack([np.full((8, 8), shade, np.uint8) for shade in (0, 255)])
    np.savez(tmp_path / "a.npz", images=images, labels=np.array([1, 0]))
    assert read_images(tmp_path / "a.npz").labels == ("0", "1")
    joined = b"".join(found.encoded)
    offsets = np.cumsum([0, *map(len, found.encoded)])
    np.savez(tmp_path / "j.npz", jpeg=np.frombuffer(joined, np.uint8), offsets=offsets, labels=found.truth)
    (tmp_path / "labels.json").write_text(json.dumps({"labels": ["dark", "light"], "source": "here"}))
    again = read_images(tmp_path / "j.npz")
    assert (list(again.encoded), again.labels) == (list(found.encoded), ("dark", "light"))
    assert again.digest == found.digest != turned.digest


def test_invalid_labelled_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "f")
    np.savez(tmp_path / "few.npz", images=np.zeros((2, 4, 4), np.uint8), labels=np.zeros(3, np.int64))
    np.savez(tmp_path / "float.npz", images=np.zeros((1, 4, 4)), labels=np.zeros(1, np.int64))
    np.savez(tmp_path / "bare.npz", images=np.zeros((1, 4, 4), np.uint8))
    np.savez(tmp_path / "pickled.npz", images=np.array([object()]), labels=np.zeros(1, np.int64))
    for path, labels, message in [
        ("empty", None, "has no folders of images; accepted:"),
        ("f", ["dark"], "the label 'light', which the task does not have; accepted: dark"),
        ("few.npz", None, "2 images and 3 labels"),
        ("few.npz", ["a"], "2 images and 3 labels"),
        ("float.npz", None, "images have type float64; accepted: uint8"),
        ("bare.npz", None, "contains no labelled images"),
        ("pickled.npz", None, "contains no labelled images"),
        ("nothing.npz", None, "contains no labelled images"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            read_images(tmp_path / path, labels)
    with pytest.raises(InvalidArgument, match="too few to split off a share"):
        read_images(tmp_path / "f").split(0.01, seed=0)
