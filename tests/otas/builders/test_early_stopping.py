"""Trainings that end when the accuracy on validation images stops rising."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testing.vits import tiny_vit
from tests.otas.builders.digits import digits
from tests.otas.builders.trainings import form_of, same
from tidal import device
from tidal_builders.otas.training.division import divide
from tidal_builders.otas.training.gamma import Examples, TrainedEpoch
from tidal_builders.otas.training.images import FloatArray, Pixels
from tidal_builders.otas.training.settings import ImageTrainingSettings
from tidal_builders.otas.training.steps import autocast, prepared
from tidal_builders.otas.training.stopping import EarlyStopping
from tidal_builders.otas.training.train import TrainedTask, train_task
from tidal_builders.otas.transformer import TransformerModel, load_transformer

pytestmark = pytest.mark.slow

LABELS = ("even", "odd")
PATIENT = ImageTrainingSettings(epochs=12, batch=32, rate=0.03, patience=2, validated=0.25)
PARTS = divide(digits(160, LABELS), PATIENT)
VIT = tiny_vit(size=8, channels=1, layers=1)


def trained(
    work: Path, settings: ImageTrainingSettings = PATIENT, reported: list[TrainedEpoch] | None = None, killed: int = 0
) -> TrainedTask:
    """Train γ 0 and 2, and interrupt it after the epoch `killed` of γ 2."""

    def report(finished: TrainedEpoch) -> None:
        if reported is not None:
            reported.append(finished)
        if (finished.gamma, finished.epoch, finished.ended) == (2, killed, False):
            raise KeyboardInterrupt

    return train_task(
        load_transformer(VIT), "b", form_of(VIT, (0, 2)), PARTS.trained, settings, work, report,
        validation=PARTS.validation,
    )  # fmt: skip


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 5))
def test_training_ends_after_the_patience_and_keeps_the_first_best_epoch(shares: list[int], patience: int) -> None:
    stopping, epoch = EarlyStopping(patience), 0
    while epoch < len(shares) and not stopping.ends_after(epoch):
        epoch += 1
        stopping.record(epoch, shares[epoch - 1] / 10, {"value": torch.tensor(epoch)})
    # The first epoch whose last `patience` are all no better than an earlier one.
    ends = [
        end
        for end in range(patience + 1, len(shares) + 1)
        if max(shares[end - patience : end]) <= max(shares[: end - patience])
    ]
    assert epoch == (ends[0] if ends else len(shares))
    best = max(shares[:epoch])
    assert (stopping.epoch, stopping.accuracy) == (shares.index(best) + 1, best / 10)
    assert stopping.parameters["value"].item() == stopping.epoch


def test_the_kept_parameters_have_the_highest_reported_accuracy(tmp_path: Path) -> None:
    reported: list[TrainedEpoch] = []
    found = trained(tmp_path, reported=reported)
    assert PARTS.validation is not None
    accuracies = [each.accuracy for each in reported if each.gamma == 2 and not each.ended]
    assert None not in accuracies
    best = max(accuracies, key=lambda share: share or 0.0)
    assert found.epochs[2] == accuracies.index(best) + 1
    assert len(accuracies) == found.epochs[2] + PATIENT.patience < PATIENT.epochs
    prompts = torch.from_numpy(np.stack([found.parameters.prompts[2]] * len(PARTS.validation)))
    pixels = Pixels(PARTS.validation, VIT.config.image)(range(len(PARTS.validation)))
    features = features_of(load_transformer(VIT), 2, pixels, prompts).numpy()
    right = found.parameters.logits(2, features).argmax(1) == PARTS.validation.truth
    # In bf16 an image between two classes may fall to either.
    assert right.mean() == pytest.approx(best, abs=1.5 / len(pixels))
    end = reported[-1]
    assert (end.gamma, end.epoch, end.accuracy, end.ended, end.share) == (2, found.epochs[2], best, True, 1.0)


def test_heads_alone_are_trained_for_all_their_epochs_and_the_best_is_kept(tmp_path: Path) -> None:
    reported: list[TrainedEpoch] = []
    found = trained(tmp_path, dataclasses.replace(PATIENT, head_epochs=20, patience=1), reported)
    accuracies = [each.accuracy or 0.0 for each in reported if each.gamma == 0 and not each.ended]
    assert len(accuracies) == 20
    assert found.epochs[0] == accuracies.index(max(accuracies)) + 1


@pytest.mark.parametrize("killed", [1, 2, 3])
def test_an_interrupted_training_keeps_the_same_epoch(tmp_path: Path, killed: int) -> None:
    reported: list[TrainedEpoch] = []
    whole = trained(tmp_path / "whole", reported=reported)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "part", killed=killed)
    after: list[TrainedEpoch] = []
    again = trained(tmp_path / "part", reported=after)
    assert same(whole.parameters, again.parameters)
    assert whole.epochs == again.epochs
    assert [each for each in after if each.gamma == 2] == [
        each for each in reported if each.gamma == 2 and (each.ended or each.epoch > killed)
    ]
    # What is trained is not trained again.
    assert [each.ended for each in after if each.gamma == 0] == [True]


def test_the_images_of_a_task_are_divided_into_disjoint_parts() -> None:
    images = digits(200)
    parts = divide(images, dataclasses.replace(PATIENT, validated=0.1))
    assert parts.validation is not None
    sets = [set(part.encoded) for part in (parts.trained, parts.validation, parts.profiled)]
    assert [len(part) for part in (parts.trained, parts.validation, parts.profiled)] == [144, 16, 40]
    assert set.union(*sets) == set(images.encoded)
    assert sum(map(len, sets)) == len(set(images.encoded))
    every = divide(images, ImageTrainingSettings())
    assert (len(every.trained), every.validation) == (160, None)
    assert every.profiled.digest == parts.profiled.digest


def test_the_settings_of_early_stopping_are_recorded_where_they_are_used() -> None:
    assert {"patience", "validated"} <= set(PATIENT.described())
    assert not {"patience", "validated"} & set(ImageTrainingSettings().described())


def test_weights_that_are_converted_once_give_the_same_features() -> None:
    cpu = torch.device("cpu")
    model = load_transformer(tiny_vit(size=8, channels=1))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pixels = torch.from_numpy(Pixels(PARTS.trained, VIT.config.image)(range(16)))
    once = prepared(model, cpu)
    for gamma in (-2, 0, 2):
        prompts = torch.randn(16, 2, 2, 8, generator=torch.Generator().manual_seed(0)) if gamma > 0 else None
        with torch.inference_mode(), autocast(cpu):
            assert torch.equal(model(gamma, pixels, prompts), once(gamma, pixels, prompts))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("most", [1 << 30, 1])
def test_embedded_images_are_those_of_the_model(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("tidal_builders.otas.training.gamma._MAX_BYTES", most)
    model = load_transformer(tiny_vit(size=8, channels=1))
    frozen = cast(TransformerModel, prepared(model, torch.device("cpu")))
    examples, images = Examples(PARTS.trained, frozen), Pixels(PARTS.trained, VIT.config.image)
    rows = np.array([3, 70, 11])
    prompts = torch.randn(3, 2, 2, 8, generator=torch.Generator().manual_seed(0))
    expected = features_of(model, 2, images(rows), prompts)
    embeds: list[int] = []
    embed = frozen.embed

    def counted(pixels: torch.Tensor) -> torch.Tensor:
        embeds.append(len(pixels))
        return embed(pixels)

    monkeypatch.setattr(frozen, "embed", counted)
    for _ in range(2):
        with torch.no_grad(), autocast(torch.device("cpu")):
            found = frozen.encode(2, examples.embedded(rows), prompts).float()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    # 96 images in batches of 64 once, or what is asked for each time.
    assert embeds == ([64, 32] if most > 1 else [3, 3])
    torch.testing.assert_close(examples.features(-2)[rows], features_of(model, -2, images(rows)), rtol=0, atol=1e-6)


def features_of(
    model: TransformerModel, gamma: int, pixels: FloatArray, prompts: torch.Tensor | None = None
) -> torch.Tensor:
    """Features of images, in the precision of trainings."""
    with torch.no_grad(), autocast(torch.device("cpu")):
        features: torch.Tensor = model(gamma, torch.from_numpy(pixels), prompts)
    return features.float()


@pytest.mark.skipif(
    not {"avx512_bf16", "amx_bf16"} & set(device.cpu().features), reason="the processor has no products of bf16"
)
def test_training_in_bf16_is_as_accurate_as_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ImageTrainingSettings(epochs=40, rate=0.03)

    def accuracy(work: Path) -> float:
        """Share of the trained images that prompts get right, in fp32."""
        images = digits(160, LABELS)
        task = train_task(load_transformer(VIT), "b", form_of(VIT, (0, 2)), images, settings, work).parameters
        prompts = torch.from_numpy(np.stack([task.prompts[2]] * len(images)))
        pixels = torch.from_numpy(Pixels(images, VIT.config.image)(range(len(images))))
        with torch.inference_mode():
            features = load_transformer(VIT)(2, pixels, prompts).numpy()
        return float((task.logits(2, features).argmax(1) == images.truth).mean())

    in_bf16 = accuracy(tmp_path / "bf16")
    monkeypatch.setattr("tidal_builders.otas.training.gamma.autocast", lambda _: nullcontext())
    monkeypatch.setattr("tidal_builders.otas.training.train.prepared", lambda model, _: model)
    assert in_bf16 == pytest.approx(accuracy(tmp_path / "fp32"), abs=0.05)
    assert in_bf16 > 0.7
