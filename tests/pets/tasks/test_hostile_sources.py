"""`tidal tasks add` of hostile files: each is refused with one message, and nothing is left in the repository."""

from __future__ import annotations

import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from testing.small_base import MADE, random_task, small_base
from tests.pets.tasks.bases import publish
from tidal.commands import tasks as command
from tidal.pets.base import load_base_layers
from tidal.pets.tasks.folder import add_task
from tidal.tensor_file import pack_tensors

Make = Callable[[Path], None]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A model `encoder` with the task `mood`."""
    publish(tmp_path / "models", small_base())
    base = load_base_layers(tmp_path / "models/encoder/1")
    add_task(tmp_path / "models/encoder/tasks", "mood", "lora", random_task("lora", base), base, MADE)
    return tmp_path / "models"


def refused(repository: Path, source: Path, *options: str) -> str:
    """Add a source and return the error message; it has no traceback, and the repository is unchanged."""
    before = sorted(path.relative_to(repository) for path in repository.rglob("*"))
    found = CliRunner().invoke(
        command.tasks, ["add", "encoder", str(source), "--name", "new", "--repository", str(repository), *options]
    )
    assert found.exit_code == 1, found.output
    assert isinstance(found.exception, SystemExit), found.exception
    assert found.stderr.startswith("error: ")
    assert "Traceback" not in found.stderr
    assert sorted(path.relative_to(repository) for path in repository.rglob("*")) == before
    return found.stderr


def with_header(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> None:
    size = len(header) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + header + data)


def peft(folder: Path, weights: Make, config: str = '{"peft_type": "LORA", "r": 4, "lora_alpha": 4}') -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(config)
    weights(folder / "adapter_model.safetensors")
    return folder


def entry(shape: Any, begin: int, end: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(5 << 30)


WEIGHTS: dict[str, tuple[Make, str]] = {
    "a header of 1 << 62 bytes": (lambda path: with_header(path, b"{}", length=1 << 62), "longer than the 4194304"),
    "a header of 5 MiB": (lambda path: with_header(path, b"{" + b" " * (5 << 20) + b"}"), "longer than the 4194304"),
    "a header beyond the file": (lambda path: with_header(path, b"{}", length=1000), "header takes 1000 bytes"),
    "a deep header": (lambda path: with_header(path, b"[" * 100_000), "not valid JSON: maximum recursion"),
    "a size that overflows": (
        lambda path: with_header(path, json.dumps({"a": entry([1 << 40, 1 << 40], 0, 4)}).encode(), bytes(4)),
        "cannot be read",
    ),
    "offsets out of range": (
        lambda path: with_header(path, json.dumps({"a": entry([2], 0, 8)}).encode(), bytes(4)), "cannot be read",
    ),
    "offsets that overlap": (
        lambda path: with_header(path, json.dumps({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}).encode(), bytes(4)),
        "cannot be read",
    ),
    "a name twice": (
        lambda path: with_header(path, b'{"a":%s,"a":%s}' % ((json.dumps(entry([1], 0, 4)).encode(),) * 2), bytes(4)),
        "a name occurs twice",
    ),
    "5 GiB": (sparse, "has 5368709120 bytes; accepted are at most 4294967296"),
    "a pipe": (os.mkfifo, "is not a regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    "nothing": (lambda path: path.write_bytes(b""), "is truncated: 0 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_hostile_weights_of_an_adapter(repository: Path, tmp_path: Path, name: str) -> None:
    write, message = WEIGHTS[name]
    assert message in refused(repository, peft(tmp_path / "lora", write))


@pytest.mark.parametrize("file", ["adapter_config.json", "config.json", "task.json"])
@pytest.mark.parametrize(
    ("content", "size"),
    [(b"[" * 100_000, 100_000), (b'{"a":' * 100_000, 500_000), (b'{"a": "', 100 << 20)],
    ids=["deep", "objects", "100 MiB"],
)
def test_json_that_is_deep_or_long(repository: Path, tmp_path: Path, file: str, content: bytes, size: int) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / file).write_bytes(content)
    os.truncate(folder / file, size)  # sparse, takes no disk space
    save_file({"a": torch.zeros(1)}, folder / "model.safetensors")
    message = refused(repository, folder)
    assert "is not valid" in message or "accepted are at most" in message or "recursion" in message
    assert len(message) < 500


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_archives_are_refused(repository: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"task.{kind}"
    if kind == "tar":
        with tarfile.open(path, "w") as archive:
            for name, linked in (("../../outside", ""), ("link", "/etc/passwd"), ("device", "")):
                member = tarfile.TarInfo(name)
                member.type, member.linkname = (tarfile.SYMTYPE, linked) if linked else (tarfile.CHRTYPE, "")
                archive.addfile(member)
    else:
        with zipfile.ZipFile(path, "w") as zipped:
            zipped.writestr("../../outside", b"x")
    assert "is not a folder" in refused(repository, path)
    assert not (tmp_path.parent / "outside").exists()


class TestCheckpoints:
    def folder(self, tmp_path: Path, **config: Any) -> Path:
        folder = tmp_path / "checkpoint"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "bert"} | config))
        save_file({"a": torch.zeros(1)}, folder / "model.safetensors")
        return folder

    def test_of_a_billion_layers(self, repository: Path, tmp_path: Path) -> None:
        message = refused(repository, self.folder(tmp_path, num_hidden_layers=10**9))
        assert "num_hidden_layers 1000000000; accepted are at most 1000" in message

    def test_that_names_files_elsewhere(self, repository: Path, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../outside.safetensors"}}')
        assert "accepted are names of files in the same folder" in refused(repository, folder)

    def test_whose_weights_have_a_hostile_header(self, repository: Path, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        with_header(folder / "model.safetensors", b"{}", length=1 << 62)
        assert "longer than the 4194304" in refused(repository, folder)

    def test_with_a_pipe_for_a_tokenizer(self, repository: Path, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        os.mkfifo(folder / "tokenizer.json")
        assert "is not a regular file" in refused(repository, folder)


class TestStored:
    def test_is_copied_without_thousands_of_other_files(self, repository: Path, tmp_path: Path) -> None:
        source = tmp_path / "stored"
        (repository / "encoder/tasks/mood").rename(source)
        for number in range(2_000):
            os.mknod(source / f"file_{number}")
        found = CliRunner().invoke(
            command.tasks, ["add", "encoder", str(source), "--name", "new", "--repository", str(repository)]
        )
        assert found.exit_code == 0, found.output
        assert sorted(path.name for path in (repository / "encoder/tasks/new").iterdir()) == [
            "task.json", "task.safetensors",
        ]  # fmt: skip

    @pytest.mark.parametrize("target", ["/dev/zero", "/dev/null", "/nowhere", "."])
    def test_whose_tensors_are_a_link(self, repository: Path, tmp_path: Path, target: str) -> None:
        source = tmp_path / "stored"
        (repository / "encoder/tasks/mood").rename(source)
        (source / "task.safetensors").unlink()
        (source / "task.safetensors").symlink_to(target)
        assert "task.safetensors" in refused(repository, source)

    def test_removing_a_link_in_the_repository_keeps_its_target(self, repository: Path, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        (repository / "encoder/tasks/mood").rename(elsewhere)
        (repository / "encoder/tasks/mood").symlink_to(elsewhere)
        found = CliRunner().invoke(command.tasks, ["remove", "encoder", "mood", "--repository", str(repository)])
        assert found.exit_code == 0, found.output
        assert list((repository / "encoder/tasks").iterdir()) == []
        assert (elsewhere / "task.json").is_file()


def test_a_valid_file_is_accepted(tmp_path: Path) -> None:
    """The unchanged form of the hostile files above."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(pack_tensors({"a": np.zeros(1, np.float32)}))
    from tidal_builders.foreign.files import read_weights

    assert list(read_weights(tmp_path, "x.safetensors", "", "")) == ["a"]
