"""Models of the Hugging Face hub as sources: downloaded once from a hub on this machine, and errors without one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.hub import hub_environment, running_hub
from testing.sentence_models import make_embedding_model

pytestmark = pytest.mark.slow

NAME = "tiny/embedder"
_SCRIPT = """
import sys
from pathlib import Path
from tidal.errors import InvalidArgument
from tidal_builders.fingerprint import source_folder
try:
    print(source_folder(sys.argv[1], sys.argv[2] or None, Path(".")))
except InvalidArgument as error:
    print("refused:", error)
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """Address of a hub, the folder of its model, and its requests."""
    folder = make_embedding_model(tmp_path / "published", dense=8)
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    with running_hub(NAME, folder) as (endpoint, asked):
        yield endpoint, folder, asked


def found(home: Path, endpoint: str, model: str, revision: str = "", **more: str) -> str:
    """What `source_folder` answers in a process of its own, whose variables the hub's library reads once."""
    environment = {**hub_environment(home, endpoint), **more}
    command = [sys.executable, "-c", _SCRIPT, model, revision]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run(command, env=environment, cwd=home.parent, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _files(folder: Path) -> set[Path]:
    return {each.relative_to(folder) for each in folder.rglob("*") if each.is_file()}


def test_a_model_of_the_hub_is_downloaded_once(hub: tuple[str, Path, list[str]], tmp_path: Path) -> None:
    endpoint, published, asked = hub
    home = tmp_path / "home"
    local = Path(found(home, endpoint, NAME))
    wanted = _files(published) - {Path("pytorch_model.bin")}
    assert _files(local) == wanted, asked
    assert Path("1_Pooling/config.json") in wanted
    for name in wanted:
        assert (local / name).read_bytes() == (published / name).read_bytes()
    downloads = [each for each in asked if each.startswith("GET") and "/resolve/" in each]
    assert len(downloads) == len(wanted)
    # Again, by another name of the revision, and without the hub: from the cache.
    assert found(home, endpoint, NAME, "v1") == str(local)
    assert [each for each in asked if each.startswith("GET") and "/resolve/" in each] == downloads
    for more in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:1"}):
        assert found(home, endpoint, NAME, **more) == str(local)


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path) -> None:
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        message = found(tmp_path / "home", "http://127.0.0.1:1", NAME, **more)
        assert message.startswith(f"refused: field 'model': there is no folder {NAME}, and the Hugging Face model")
        assert "is not in the cache of this machine and cannot be downloaded from http://127.0.0.1:1" in message
        assert message.endswith(f"hf download {NAME} --local-dir FOLDER")


def test_a_name_that_the_hub_does_not_have(hub: tuple[str, Path, list[str]], tmp_path: Path) -> None:
    message = found(tmp_path / "home", hub[0], "tiny/embeder")
    assert message.startswith("refused: field 'model': 'tiny/embeder' is neither a folder nor a Hugging Face id that")
    assert "no folder" in found(tmp_path / "home", hub[0], "./tiny")
