"""The backend of docs/extending.md serves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testing.servers import running_server
from tests.docs.extending import examples
from tidal_client import Client

pytestmark = pytest.mark.server


def test_a_backend(tmp_path: Path) -> None:
    adapter, system = examples("A backend")
    folder = tmp_path / "shout"
    folder.mkdir()
    # A backend's own folder is on its path: here it has the module that an installation has in `tidal`.
    (folder / "model.py").write_text(adapter.replace("tidal.shout", "shout"))
    (folder / "shout.py").write_text(system)
    repository = tmp_path / "models"
    (repository / "loud" / "1").mkdir(parents=True)
    (repository / "loud" / "config.pbtxt").write_text('backend: "shout"\n')
    with running_server(repository, extra_backends={"shout": folder}) as server:
        assert server.load_error("loud") == ""
        with Client(f"grpc://{server.grpc}") as client:
            answer = client.infer("loud", {"text_input": np.array([[b"hello"]], object)})
            assert answer["text_output"].tolist() == [[b"HELLO!"]]
