"""`tidal tasks` on a repository, without a server."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from testing.small_base import MADE, random_task, small_base
from tests.pets.tasks.bases import publish
from tests.tabi.serving import cascades, write_cascade
from tidal.catalog.graph import ModelGraph
from tidal.commands import tasks as command
from tidal.pets.base import load_base_info, load_base_layers
from tidal.pets.tasks.folder import add_task, load_task
from tidal_client.extras import install_command

runner = CliRunner()


def run(repository: Path, *arguments: str) -> Result:
    return runner.invoke(command.tasks, [*arguments, "--repository", str(repository)])


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A model `encoder` with the tasks `mood` (LoRA) and `topic` (BitFit), and a model without tasks."""
    publish(tmp_path / "models", small_base())
    (tmp_path / "models/other/1").mkdir(parents=True)
    base = load_base_layers(tmp_path / "models/encoder/1")
    for name, kind in (("mood", "lora"), ("topic", "bitfit")):
        add_task(tmp_path / "models/encoder/tasks", name, kind, random_task(kind, base), base, MADE)
    return tmp_path / "models"


def test_a_published_base_round_trips(repository: Path) -> None:
    base, found = small_base(), load_base_layers(repository / "encoder/1")
    assert found.linear.keys() == base.linear.keys()
    assert found.norm.keys() == base.norm.keys()
    for path, layer in base.linear.items():
        assert (found.linear[path].weight == layer.weight).all()
        assert (found.linear[path].bias == layer.bias).all()
    assert found.digest == load_base_info(repository / "encoder/1").digest
    assert found.width == base.width


class TestList:
    def test_shows_every_task(self, repository: Path) -> None:
        lines = run(repository, "list", "encoder").stdout.splitlines()
        assert lines[0].split()[:3] == ["TASK", "KIND", "LABELS"]
        assert [line.split()[:3] for line in lines[1:]] == [["mood", "lora", "3"], ["topic", "bitfit", "3"]]
        assert all(line.rstrip().endswith("fits") for line in lines[1:])

    def test_shows_why_a_task_does_not_fit(self, repository: Path) -> None:
        publish(repository, small_base(1), 2)
        (repository / "encoder/tasks/topic/task.json").write_text("{}")
        rows = json.loads(run(repository, "list", "encoder", "--json").stdout)
        assert rows[0]["state"].startswith("made for another base")
        assert "task.json is not valid: base: Field required" in rows[1]["state"]
        assert "not valid" in run(repository, "list", "encoder").stdout

    def test_without_a_task_is_empty(self, tmp_path: Path) -> None:
        publish(tmp_path, small_base())
        assert json.loads(run(tmp_path, "list", "encoder", "--json").stdout) == []

    @pytest.mark.parametrize(
        ("model", "reason"),
        [
            ("encodr", "there is no model 'encodr' in .*did you mean 'encoder'"),
            ("other", "model 'other' serves no tasks: only those of a spec of kind pets, otas or flover do"),
        ],
    )
    def test_of_an_unsuitable_model_fails(self, repository: Path, model: str, reason: str) -> None:
        found = run(repository, "list", model)
        assert found.exit_code == 1
        assert re.search(reason, found.stderr)

    def test_of_a_missing_repository_fails(self, tmp_path: Path) -> None:
        found = run(tmp_path / "absent", "list", "encoder")
        assert (found.exit_code, "is not a folder; name one by --repository" in found.stderr) == (1, True)


class TestShow:
    def test_verifies_and_describes(self, repository: Path) -> None:
        found = run(repository, "show", "encoder", "mood")
        assert found.exit_code == 0
        assert "lora: low-rank differences (LoRA)" in found.stdout
        assert "low-rank differences (rank 3) in 5 layers" in found.stdout
        described = json.loads(run(repository, "show", "encoder", "topic", "--json").stdout)
        assert described["labels"] == ["label 0", "label 1", "label 2"]
        assert (described["changes"]["biases"], described["changes"]["normalisations"]) == (5, 1)

    def test_refuses_a_damaged_task(self, repository: Path) -> None:
        path = repository / "encoder/tasks/mood/task.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
        found = run(repository, "show", "encoder", "mood")
        assert (found.exit_code, "task 'mood' is refused: task.safetensors does not match" in found.stderr) == (1, True)

    def test_suggests_similar_tasks(self, repository: Path) -> None:
        found = run(repository, "show", "encoder", "mod")
        assert (found.exit_code, "unknown task 'mod': did you mean 'mood'?" in found.stderr) == (1, True)


class TestRemove:
    def test_removes_all_existing_tasks(self, repository: Path) -> None:
        found = run(repository, "remove", "encoder", "mood", "absent", "topic")
        assert found.exit_code == 1
        assert found.stdout.splitlines() == ["removed task 'mood' from encoder", "removed task 'topic' from encoder"]
        assert "unknown task 'absent'" in found.stderr
        assert not list((repository / "encoder/tasks").iterdir())

    def test_a_task_that_a_cascade_requires_is_only_removed_by_force(self, repository: Path) -> None:
        plain = write_cascade(repository / "reviews", cascades())
        small = plain.levels[0].model_copy(update={"model": "encoder", "task": "mood", "fingerprint": "f"})
        write_cascade(repository / "reviews", cascades(), levels=(small, plain.levels[1]))
        assert ModelGraph.read(repository).cascades_over("encoder", "mood") == ["reviews"]
        assert ModelGraph.read(repository).cascades_over("other", "mood") == []
        found = run(repository, "remove", "encoder", "mood", "topic")
        assert found.exit_code == 1
        assert found.stdout.splitlines() == ["removed task 'topic' from encoder"]
        assert "task 'mood' is a level of reviews: remove it with --force" in found.stderr
        assert [task.name for task in (repository / "encoder/tasks").iterdir()] == ["mood"]
        assert run(repository, "remove", "encoder", "mood", "--force").exit_code == 0
        assert not list((repository / "encoder/tasks").iterdir())


class TestAdd:
    def test_copies_a_stored_task(self, repository: Path) -> None:
        source = repository / "encoder/tasks/mood"
        found = run(repository, "add", "encoder", str(source), "--name", "again")
        assert found.exit_code == 0
        assert found.stdout.startswith("added task 'again' to encoder: low-rank differences (rank 3) in 5 layers; ")
        base = load_base_layers(repository / "encoder/1")
        tasks = repository / "encoder/tasks"
        assert load_task(tasks, "again", base).info == load_task(tasks, "mood", base).info

    def test_uses_the_folders_name_and_keeps_an_existing_task(self, repository: Path) -> None:
        source = str(repository / "encoder/tasks/mood")
        found = run(repository, "add", "encoder", source)
        assert (found.exit_code, "task 'mood' already exists" in found.stderr) == (1, True)
        assert run(repository, "add", "encoder", source, "--replace").exit_code == 0

    def test_refuses_to_convert_a_stored_task(self, repository: Path) -> None:
        source = str(repository / "encoder/tasks/mood")
        found = run(repository, "add", "encoder", source, "--name", "again", "--half")
        assert (found.exit_code, "copied as it is" in found.stderr) == (1, True)

    def test_refuses_an_unknown_folder(self, repository: Path, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        found = run(repository, "add", "encoder", str(tmp_path / "empty"))
        assert (found.exit_code, "cannot be imported as a task" in found.stderr) == (1, True)

    def test_names_the_extra_that_is_not_installed(
        self, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "tidal_builders.pets.importing.recognise", None)
        (tmp_path / "empty").mkdir()
        found = run(repository, "add", "encoder", str(tmp_path / "empty"))
        assert (found.exit_code, install_command("build") in found.stderr) == (2, True)
