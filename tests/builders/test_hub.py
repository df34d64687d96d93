"""Models of the Hugging Face hub as sources: downloaded once from a hub on this machine, and errors without one."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from testing.sentence_models import make_embedding_model

pytestmark = pytest.mark.slow

NAME, COMMIT = "tiny/embedder", "c0ffee" + "0" * 34
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


class _Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for one model: its files, and their contents at a commit."""

    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.asked.append(f"{self.command} {path}")
        files = {str(each.relative_to(self.folder)): each for each in self.folder.rglob("*") if each.is_file()}
        if path in (f"/api/models/{NAME}/revision/{each}" for each in ("main", "v1", COMMIT)):
            return self._send(json.dumps({"id": NAME, "sha": COMMIT}).encode(), {})
        if path == f"/api/models/{NAME}/tree/{COMMIT}":
            tree = [
                {
                    "type": "file",
                    "path": name,
                    "size": file.stat().st_size,
                    "oid": hashlib.sha1(name.encode()).hexdigest(),
                }
                for name, file in files.items()
            ]
            return self._send(json.dumps(tree).encode(), {})
        begin = f"/{NAME}/resolve/{COMMIT}/"
        if path.startswith(begin) and (file := files.get(path.removeprefix(begin))) is not None:
            content = file.read_bytes()
            own = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            return self._send(content, own)
        return self._send(b"{}", {"X-Error-Code": "RepoNotFound"}, 404)

    def _send(self, content: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """Address of a hub, the folder of its model, and its requests."""
    folder = make_embedding_model(tmp_path / "published", dense=8)
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    asked = list[str]()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_One", (_Hub,), {"folder": folder, "asked": asked}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder, asked
    server.shutdown()
    server.server_close()
    thread.join()


def found(home: Path, endpoint: str, model: str, revision: str = "", **more: str) -> str:
    """What `source_folder` answers in a process of its own, whose variables the hub's library reads once."""
    environment = {**os.environ, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", **more}
    environment.pop("HF_HUB_CACHE", None)
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
