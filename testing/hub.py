"""A Hugging Face hub on this machine that has one model."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_COMMIT = "c0ffee" + "0" * 34


class _Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for one model: its files, and their contents at a commit."""

    name: str
    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.asked.append(f"{self.command} {path}")
        files = {str(each.relative_to(self.folder)): each for each in self.folder.rglob("*") if each.is_file()}
        if path in (f"/api/models/{self.name}/revision/{each}" for each in ("main", "v1", _COMMIT)):
            return self._send(json.dumps({"id": self.name, "sha": _COMMIT}).encode(), {})
        if path == f"/api/models/{self.name}/tree/{_COMMIT}":
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
        begin = f"/{self.name}/resolve/{_COMMIT}/"
        if path.startswith(begin) and (file := files.get(path.removeprefix(begin))) is not None:
            content = file.read_bytes()
            own = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": _COMMIT}
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


@contextmanager
def running_hub(name: str, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Run a hub.

    Args:
        name: Id of its model, with the revisions `main` and `v1`.
        folder: Files of the model.

    Yields:
        Its address, and its requests so far.
    """
    asked = list[str]()
    handler = type("_One", (_Hub,), {"name": name, "folder": folder, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def hub_environment(home: Path, endpoint: str) -> dict[str, str]:
    """Variables of a process that downloads from a hub into a cache of its own; the hub's library reads them once.

    Args:
        home: Folder of the cache.
        endpoint: Address of the hub.
    """
    found = {**os.environ, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
    found.pop("HF_HUB_CACHE", None)
    return found
