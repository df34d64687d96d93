"""`tidal tasks` on a vision transformer: tasks are added or trained, and measured with its engines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from testing import tiny_vision as tiny
from testing.vits import tiny_vit
from tests.otas.builders.digits import digits
from tidal.commands.tasks import tasks
from tidal.otas.runner import open_runner
from tidal.otas.tasks import load_task
from tidal.tensor_file import pack_tensors
from tidal_builders.otas.training.accuracy import measure_accuracy

LABELS = ("even", "odd")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the model "vision" for grey images of 8 pixels; each test adds tasks of its own names."""
    folder = tmp_path_factory.mktemp("registering")
    source = tiny.write_source(folder / "source", tiny_vit(size=8, channels=1, layers=1))
    tiny.build(folder / "r", source, gammas=[0, 2], static_batches=[])
    return folder / "r"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled digits."""
    found = digits(90, LABELS)
    path = tmp_path_factory.mktemp("data") / "parity.npz"
    joined, sizes = b"".join(found.encoded), [len(each) for each in found.encoded]
    np.savez(path, jpeg=np.frombuffer(joined, np.uint8), offsets=np.cumsum([0, *sizes]), labels=found.truth)
    (path.parent / "labels.json").write_text(json.dumps(LABELS))
    return path


@pytest.fixture
def given(built: Path, tmp_path: Path) -> Path:
    """A head and prompts in a folder."""
    made = tiny.random_parameters(tiny.manifest_of(built), LABELS)
    tensors = {"head.weight": made.head.weight, "head.bias": made.head.bias, "prompts.2": made.prompts[2]}
    (tmp_path / "given").mkdir()
    (tmp_path / "given/task.safetensors").write_bytes(pack_tensors(tensors))
    (tmp_path / "given/labels.json").write_text(json.dumps(LABELS))
    return tmp_path / "given"


def run(repository: Path, *arguments: object) -> Result:
    return CliRunner().invoke(tasks, [*map(str, arguments), "--repository", str(repository)])


def test_an_added_task_is_measured_with_the_engines(built: Path, given: Path, data: Path) -> None:
    found = run(built, "add", "vision", given, "--data", data)
    assert found.exit_code == 0, found.stderr
    assert found.stdout.startswith("added task 'given' to vision: accuracy γ +0 ")
    manifest = tiny.manifest_of(built)
    task = load_task(built / "vision/tasks", "given", manifest)
    runner = open_runner(manifest, built / "vision/1")
    assert task.accuracy == measure_accuracy(runner, manifest, task.parameters, digits(90, LABELS))
    assert task.record.provenance.profiled == 90
    shown = run(built, "show", "vision", "given").stdout
    assert "measured on  90 images" in shown
    copied = run(built, "add", "vision", built / "vision/tasks/given", "--name", "copy")
    assert copied.exit_code == 0
    assert load_task(built / "vision/tasks", "copy", manifest).accuracy == task.accuracy


def test_a_trained_task_is_measured_on_held_out_images(built: Path, data: Path) -> None:
    found = run(built, "train", "vision", data, "--epochs", 2, "--rate", 0.01, "--json")
    assert found.exit_code == 0, found.stderr
    result = json.loads(found.stdout)
    assert (result["task"], result["labels"], set(result["accuracy"])) == ("parity", list(LABELS), {"0", "2"})
    assert result["provenance"]["profiled"] == 18
    assert (result["provenance"]["settings"]["epochs"], result["provenance"]["settings"]["batch"]) == ("2", "32")
    assert not list((built / "vision/.training").iterdir())
    rows = json.loads(run(built, "list", "vision", "--json").stdout)
    assert {row["task"]: row["state"] for row in rows}["parity"] == "fits"
    again = run(built, "train", "vision", data)
    assert (again.exit_code, "task 'parity' already exists" in again.stderr) == (1, True)


def test_a_patient_training_says_which_epochs_it_kept(built: Path, data: Path) -> None:
    options = ("--name", "patient", "--epochs", 6, "--patience", 1, "--rate", 0.01, "--json")
    found = run(built, "train", "vision", data, *options)
    assert found.exit_code == 0, found.stderr
    provenance = json.loads(found.stdout)["provenance"]
    settings = provenance["settings"]
    assert (settings["epochs"], settings["patience"], settings["validated"]) == ("6", "1", "0.1")
    kept = dict(part.removeprefix("γ ").split(": ") for part in settings["kept_epochs"].split(", "))
    assert set(kept) == {"0", "2"}
    assert all(1 <= int(epoch) <= 6 for epoch in kept.values())
    assert provenance["profiled"] == 18
    refused = run(built, "train", "vision", data, "--name", "x", "--patience", 0)
    assert refused.exit_code == 2
    assert "--patience" in refused.stderr


def test_invalid_sources_and_options_are_refused(built: Path, given: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (given / "few").mkdir()
    (given / "few/labels.json").write_text("[]")
    for arguments, message in [
        (
            ("add", given, "--name", "x"),
            "needs labelled images, on which its accuracy is measured: name them by --data",
        ),
        (
            ("add", given, "--name", "x", "--half", "--data", data),
            "and --base-model are for tasks of texts",
        ),
        (("add", given, "--name", "x", "--data", tmp_path / "empty"), "has no folders of images"),
        (
            ("add", given, "--name", "x", "--data", data, "--labels", "a,b,c"),
            "tensor 'head.weight' has type float32 and shape (2, 8)",
        ),
        (("add", given / "few", "--data", data), "has no names of classes"),
        (("add", tmp_path / "empty", "--data", data, "--labels", "a,b"), "task.safetensors cannot be read"),
        (("add", given, "--data", data, "--name", "-"), "'-' is not a valid task name"),
        (("train", data, "--name", "x", "--rate", 0), "--rate must be greater than 0, got 0"),
        (("train", tmp_path / "absent.npz", "--name", "x"), "contains no labelled images"),
    ]:
        command, *rest = arguments
        found = run(built, command, "vision", *rest)
        assert (found.exit_code, message in found.stderr) == (1, True), found.stderr
