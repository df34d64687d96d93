"""Which task a minimal config.pbtxt is completed for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidal.triton.config import published_task


def command(folder: Path, *arguments: str) -> Path:
    """A file with the arguments of a process."""
    file = folder / "cmdline"
    file.write_bytes(b"".join(each.encode() + b"\0" for each in arguments))
    return file


def test_the_task_is_that_of_the_version_beside_the_stubs_first_argument(tmp_path: Path) -> None:
    (tmp_path / "m/3").mkdir(parents=True)
    (tmp_path / "m/3/manifest.json").write_text(json.dumps({"kind": "arlo", "task": "embedding"}))
    assert published_task(command(tmp_path, "/stub", str(tmp_path / "m/3/model.py"), "shm")) == "embedding"


@pytest.mark.parametrize("manifest", [None, "", "[]", "{}", '{"task": 3}', '{"task": "embedding"'])
def test_a_version_without_a_readable_task_has_none(tmp_path: Path, manifest: str | None) -> None:
    (tmp_path / "1").mkdir()
    if manifest is not None:
        (tmp_path / "1/manifest.json").write_text(manifest)
    assert published_task(command(tmp_path, "/stub", str(tmp_path / "1/model.py"))) is None


def test_an_unknown_command_has_none(tmp_path: Path) -> None:
    assert published_task(command(tmp_path, "/stub")) is None
    assert published_task(tmp_path / "missing") is None
