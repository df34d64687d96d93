"""The demo's digits: the images that are sent are not among the training images."""

from __future__ import annotations

from pathlib import Path

from demo.digits import TASKS, unseen_digits, write_digits
from tidal_builders.otas.training.images import read_images
from tidal_builders.specs import load_spec


def test_sent_digits_are_not_in_the_training_files(tmp_path: Path) -> None:
    write_digits(tmp_path)
    sent = unseen_digits(6)
    assert (tmp_path / "0.png").read_bytes() == sent[0].png
    for task, labels in TASKS.items():
        found = read_images(tmp_path / f"{task}.npz", labels)
        assert len(found) == 1437
        assert not set(found.encoded) & {digit.png for digit in sent}
        assert set(found.truth.tolist()) == set(range(len(labels)))


def test_the_demos_spec_is_valid() -> None:
    spec = load_spec(Path(__file__).parents[2] / "demo/digits.yaml")
    assert (spec.kind, spec.name, spec.gammas) == ("otas", "digits", (-4, -2, 0, 2))  # type: ignore[union-attr]
