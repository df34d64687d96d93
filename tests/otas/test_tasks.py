"""Tasks of a vision transformer: writing and reading them, and refusing those that do not fit the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.otas.content import CONTENT
from tidal.errors import InvalidArgument
from tidal.otas.manifest import OtasManifest
from tidal.otas.tasks import Head, OtasProvenance, TaskParameters, add_task, load_task

MANIFEST = OtasManifest.model_validate(CONTENT)
ACCURACY = {-1: 0.5, 0: 0.75, 2: 1.0}
MADE = OtasProvenance(source="a test")


def parameters(**changed: Any) -> TaskParameters:
    draw = np.random.default_rng(0)

    def values(*shape: int) -> Any:
        return draw.normal(size=shape).astype(np.float32)

    fields = {
        "labels": ("a", "b", "c"),
        "head": Head(values(3, 2), values(3)),
        "heads": {2: Head(values(3, 2), values(3))},
        "prompts": {2: values(3, 2, 2)},
    }
    return TaskParameters(**fields | changed)


def add(tasks: Path, made: TaskParameters, manifest: OtasManifest = MANIFEST, **changed: Any) -> Any:
    arguments = {"accuracy": ACCURACY, "manifest": manifest, "provenance": MADE} | changed
    return add_task(tasks, "task", made, **arguments)


def test_an_added_task_round_trips(tmp_path: Path) -> None:
    made = parameters()
    add(tmp_path, made)
    found = load_task(tmp_path, "task", MANIFEST)
    assert (found.name, found.accuracy, found.parameters.labels) == ("task", ACCURACY, made.labels)
    np.testing.assert_array_equal(found.parameters.prompts[2], made.prompts[2])
    features = np.ones((4, 2), np.float32)
    for gamma, head in ((0, made.head), (-1, made.head), (2, made.heads[2])):
        expected = features @ head.weight.T + head.bias
        np.testing.assert_allclose(found.parameters.logits(gamma, features), expected, rtol=1e-6)
    assert found.record.memory_bytes == made.bytes == 4 * (9 + 9 + 12)


def test_an_existing_name_is_refused_unless_replaced(tmp_path: Path) -> None:
    add(tmp_path, parameters())
    with pytest.raises(InvalidArgument, match="already exists"):
        add(tmp_path, parameters())
    replaced = add(tmp_path, parameters(labels=("x", "y", "z")), replace=True)
    assert replaced.parameters.labels == load_task(tmp_path, "task", MANIFEST).parameters.labels == ("x", "y", "z")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"prompts": {}}, "no tensor 'prompts.2'"),
        ({"prompts": {2: np.zeros((3, 1, 2), np.float32)}}, r"'prompts.2' has type float32 and shape \(3, 1, 2\)"),
        ({"head": Head(np.zeros((2, 2), np.float32), np.zeros(2, np.float32))}, "tensor 'head.weight'"),
        ({"head": Head(np.full((3, 2), np.nan, np.float32), np.zeros(3, np.float32))}, "not finite"),
        ({"heads": {2: Head(np.zeros((3, 2), np.float32), np.zeros(2, np.float32))}}, "tensor 'head.2.bias'"),
        ({"labels": ("a", "a", "b")}, "labels must differ"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        add(tmp_path, parameters(**changed))
    assert not any(tmp_path.iterdir())


def test_a_task_for_other_weights_or_prompts_is_refused(tmp_path: Path) -> None:
    add(tmp_path, parameters())
    for change, message in (
        ({"base": "1" * 64}, "made for the base 000000000000…"),
        ({"accumulate": True}, "trained with accumulate False, and the model has True"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            load_task(tmp_path, "task", MANIFEST.model_copy(update=change))


def test_an_accuracy_for_every_gamma_is_required(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no accuracy for γ -1, 2; the model runs -1, 0, 2"):
        add(tmp_path, parameters(), accuracy={0: 0.5})
    with pytest.raises(InvalidArgument, match="accuracy"):
        add(tmp_path, parameters(), accuracy=ACCURACY | {0: 1.5})
    found = add(tmp_path, parameters(), accuracy=ACCURACY | {4: 0.5})  # an additional γ is accepted
    assert found.accuracy[4] == 0.5


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    add(tmp_path, parameters())
    path = tmp_path / "task/task.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match="damaged"):
        load_task(tmp_path, "task", MANIFEST)
