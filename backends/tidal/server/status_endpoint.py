"""The HTTP endpoint of `tidal serve` for probes: `GET /ready` and `GET /live`.

It answers from memory and never asks tritonserver, so that it answers while tritonserver hangs or is away.
"""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from typing import Any

from tidal.errors import Unavailable
from tidal.server.status import ServeStatus

# What a client may take to send its request, in seconds.
_REQUEST_S = 5.0
# Probes are few; more connections at a time than this are closed unanswered.
_CONNECTIONS = 64
_ASK_S = 2.0


@contextmanager
def status_endpoint(host: str, port: int, status: ServeStatus) -> Iterator[None]:
    """Answer probes on an address until the block ends.

    Raises:
        Unavailable: the port is taken.
    """
    try:
        server = _Server((host, port), status)
    except OSError as error:
        raise Unavailable(f"status port {port} cannot be listened on: {error.strerror}") from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def read_readiness(address: str) -> dict[str, Any] | None:
    """The document of `GET /ready` at `host:port`; None where nothing answers there."""
    # A proxy of the environment is for other machines' traffic.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}/ready", timeout=_ASK_S) as response:
            content = response.read()
    except urllib.error.HTTPError as error:  # 503 carries the same document
        content = error.read()
    except (OSError, http.client.HTTPException):
        return None
    try:
        document = json.loads(content)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "ready" in document else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], status: ServeStatus) -> None:
        self.status = status
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """A client that goes away is no error of the server."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "tidal"
    sys_version = ""
    timeout = _REQUEST_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/ready":
            well, document = self.server.status.ready()
        elif path == "/live":
            well, document = self.server.status.live()
        else:
            self._answer(404, {"error": f"no such path: {path[:100]}; there are /ready and /live"})
            return
        self._answer(200 if well else 503, document)

    do_HEAD = do_GET

    def _answer(self, code: int, document: dict[str, Any]) -> None:
        content = json.dumps(document).encode() + b"\n"
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds: not logged."""
