"""Imports that the command refuses, and what it says and keeps; without a server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
)

from testing.models import make_tiny_classifier
from testing.pets import Base
from tests.pets.served.saved_sources import (
    KINDS,
    Source,
    add,
    low_rank,
    rename_base,
)
from tidal.pets.base import load_base_layers
from tidal.pets.tasks.folder import load_task
from tidal.tasks.folder import tasks_folder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with another base of equal shape and a LoRA adapter for it."""
    folder = tmp_path_factory.mktemp("foreign")
    low_rank(make_tiny_classifier(folder / "other", max_position=64, seed=5), folder / "lora")
    return folder


class TestRefusing:
    """Imports that the command refuses leave no task."""

    @pytest.fixture
    def repository(self, base: Base, tmp_path: Path) -> Path:
        base.copy(tmp_path / "r", "base")
        return tmp_path / "r"

    def refused(self, repository: Path, source: Path, *options: str | Path) -> str:
        found = add(repository, "base", source, "mood", *options)
        assert found.exit_code == 1, found.output
        assert not [path for path in tasks_folder(repository / "base").glob("*") if path.name == "mood"]
        return found.stderr

    def test_a_task_that_differs_from_its_source(
        self, repository: Path, sources: dict[str, Source], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The comparison of answers detects any mistake between the source and the stored file."""
        from tidal_builders.pets.importing import checkpoint

        good = checkpoint.NormTerms
        monkeypatch.setattr(checkpoint, "NormTerms", lambda weight, bias: good(weight, bias + 0.3))
        message = self.refused(repository, sources["bitfit"].folder)
        assert "the stored task answers differently from the checkpoint: " in message
        assert "nothing was added (--force adds it anyway)" in message
        assert add(repository, "base", sources["bitfit"].folder, "mood", "--force").exit_code == 0
        notes = load_task(
            tasks_folder(repository / "base"), "mood", load_base_layers(repository / "base/1")
        ).info.provenance.notes
        assert "added by --force: the stored task answers differently from the checkpoint" in notes[-1]

    def test_a_refused_replacement_keeps_the_old_task(
        self, repository: Path, sources: dict[str, Source], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tidal_builders.pets.importing import checkpoint

        assert add(repository, "base", sources["lora"].folder, "mood", *KINDS["lora"][1]).exit_code == 0
        good = checkpoint.NormTerms
        monkeypatch.setattr(checkpoint, "NormTerms", lambda weight, bias: good(weight, bias + 0.3))
        assert add(repository, "base", sources["bitfit"].folder, "mood", "--replace").exit_code == 1
        task = load_task(tasks_folder(repository / "base"), "mood", load_base_layers(repository / "base/1"))
        assert task.info.kind == "lora"

    def test_a_checkpoint_with_changed_embeddings_is_compared_without_them(
        self, repository: Path, base: Base, sources: dict[str, Source], tmp_path: Path
    ) -> None:
        changed = tmp_path / "changed"
        shutil.copytree(sources["bitfit"].folder, changed)
        model = AutoModelForSequenceClassification.from_pretrained(changed)
        with torch.no_grad():
            model.bert.embeddings.word_embeddings.weight.mul_(1.001)
        model.save_pretrained(changed)
        found = add(repository, "base", changed, "mood")
        assert found.exit_code == 0, found.output
        assert "not carried, because a task cannot change it: embeddings.word_embeddings.weight" in found.stdout

    @pytest.mark.parametrize("named", ["weights", "name", "nothing"])
    def test_a_lora_of_another_base(self, repository: Path, foreign: Path, tmp_path: Path, named: str) -> None:
        """The adapter names its base by a folder, by a name, or not at all."""
        other = foreign / "other"
        names = {"weights": str(other), "name": "some/encoder", "nothing": None}
        lora = rename_base(foreign / "lora", tmp_path / "lora", names[named])
        message = self.refused(repository, lora, *KINDS["lora"][1])
        assert {
            "weights": f"was trained on {other}, whose weights are not those of this model's base",
            "name": "was trained on 'some/encoder', which is not on this machine; this model was built from",
            "nothing": "names no base",
        }[named] in message
        assert "with --base-model FOLDER, or add it without the comparison with --force" in message

    def test_a_lora_of_another_base_unless_its_base_is_given(
        self, repository: Path, foreign: Path, base: Base, tmp_path: Path
    ) -> None:
        lora, labels = rename_base(foreign / "lora", tmp_path / "lora", None), KINDS["lora"][1]
        message = self.refused(repository, lora, *labels, "--base-model", foreign / "other")
        assert "is not the base that the model was built from: its weights differ" in message
        assert add(repository, "base", lora, "mood", *labels, "--base-model", base.source).exit_code == 0
        forced = add(repository, "base", lora, "forced", *labels, "--force")
        assert forced.exit_code == 0
        assert "note: added by --force: " in forced.stdout

    @pytest.mark.parametrize("options", [("--impossible-answers",), ("--max-answer-tokens", "5")])
    def test_options_of_questions_for_another_task(
        self, repository: Path, sources: dict[str, Source], options: tuple[str, ...]
    ) -> None:
        message = self.refused(repository, sources["lora"].folder, *KINDS["lora"][1], *options)
        assert f"{options[0]} is for tasks of question-answering, and this one is of classification" in message

    def test_a_lora_without_the_files_of_its_base(self, base: Base, repository: Path, sources: dict[str, Source],
                                                  tmp_path: Path) -> None:  # fmt: skip
        """Equal names identify the base, but the comparison of answers needs its files."""
        rename_base(sources["lora"].folder, tmp_path / "lora", "some/encoder")
        manifest = repository / "base/1/manifest.json"
        content = json.loads(manifest.read_text())
        content["source"]["model"] = "some/encoder"
        manifest.write_text(json.dumps(content))
        labels = KINDS["lora"][1]
        message = self.refused(repository, tmp_path / "lora", *labels)
        assert "the base's own files are not on this machine; name their folder by --base-model FOLDER" in message
        assert add(repository, "base", tmp_path / "lora", "mood", *labels, "--base-model", base.source).exit_code == 0
