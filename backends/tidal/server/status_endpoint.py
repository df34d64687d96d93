"""The HTTP endpoint of `tidal serve` for probes and gateways: `GET /ready`, `GET /live` and `GET /models`.

It sends tritonserver no request and answers probes from memory, so that it answers while tritonserver hangs.
"""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from typing import Any

from tidal.errors import Unavailable
from tidal.server.local_http import open_url
from tidal.server.model_report import ModelReport
from tidal.server.status import ServeStatus

# Longest time for a client to send its request, in seconds.
_REQUEST_S = 5.0
# Probes are few; connections beyond this number at a time are closed unanswered.
_CONNECTIONS = 64
_ANSWER_S = 2.0


@contextmanager
def status_endpoint(host: str, port: int, status: ServeStatus, models: ModelReport) -> Iterator[None]:
    """Answer probes until the block ends.

    Args:
        host: IPv4 address to listen on.
        port: Port to listen on.
        status: Status to report.
        models: Description of the models.

    Raises:
        Unavailable: The port is in use.
    """
    try:
        server = _Server((host, port), status, models)
    except OSError as error:
        raise Unavailable(f"status port {port} cannot be opened: {error.strerror}") from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def read_readiness(address: str) -> dict[str, Any] | None:
    """Request the document of `GET /ready` from `host:port`; None where nothing answers there."""
    try:
        with open_url(f"http://{address}/ready", _ANSWER_S) as response:
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

    def __init__(self, address: tuple[str, int], status: ServeStatus, models: ModelReport) -> None:
        self.status = status
        self.models = models
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
        """Ignore clients that disconnect: that is not an error of the server."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "tidal"
    sys_version = ""
    timeout = _REQUEST_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/ready":
            ok, document = self.server.status.ready()
        elif path == "/live":
            ok, document = self.server.status.live()
        elif path == "/models":
            ok, document = True, self.server.models.document(self.server.status.serving_versions())
        else:
            self._answer(404, {"error": f"unknown path {path[:100]}; available are /ready, /live and /models"})
            return
        self._answer(200 if ok else 503, document)

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
        """Do not log: probes arrive every few seconds."""
