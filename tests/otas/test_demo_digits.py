"""The demo's digits: what is sent was not trained on, and files are those that tasks are trained from."""

from __future__ import annotations

from pathlib import Path

from demo.digits import TASKS, unseen_digits, write_digits
from tidal_builders.otas.training.images import read_images
from tidal_builders.specs import load_spec


def test_digits_that_are_sent_are_in_no_file_of_a_task(tmp_path: Path) -> None:
    write_digits(tmp_path)
    sent = unseen_digits(6)
    assert (tmp_path / "0.png").read_bytes() == sent[0].png
    for task, labels in TASKS.items():
        found = read_images(tmp_path / f"{task}.npz", labels)
        assert len(found) == 1437
        assert not set(found.encoded) & {digit.png for digit in sent}
        assert set(found.truth.tolist()) == set(range(len(labels)))


def test_the_demo_s_spec_is_one() -> None:
    spec = load_spec(Path(__file__).parents[2] / "demo/digits.yaml")
    assert (spec.kind, spec.name, spec.gammas) == ("otas", "digits", (-4, -2, 0, 2))  # type: ignore[union-attr]
