from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.serving import Served, publish, serving


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`echo` (two instances) and `spare` with one version each, `later` without one."""
    folder = tmp_path_factory.mktemp("serve") / "models"
    publish(folder, "echo", instances=2)
    publish(folder, "spare")
    (folder / "later").mkdir()
    (folder / "later" / "config.pbtxt").write_text('backend: "arlo"\n')
    return folder


@pytest.fixture(scope="session")
def served(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server shared by tests that leave it serving."""
    with serving(repository, tmp_path_factory.mktemp("shared")) as server:
        yield server
