"""`tidal top` without a server: its targets and its errors."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tidal_client.main import build_app


def top(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["top", *arguments, "--once"])


@pytest.fixture
def site() -> Iterator[str]:
    """A web server that is neither a tritonserver nor a gateway."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/metrics"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(b"process_cpu_seconds_total 1\n" if found else b"<html>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "target", ["foo", "ftp://a", "http://a/b", "http://a:x/metrics", "https://a/metrics", "http://"]
)
def test_a_target_that_is_not_accepted(target: str) -> None:
    answer = top(target)
    assert answer.exit_code == 2
    assert "expected" in answer.stderr


def test_without_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    answer = top()
    assert answer.exit_code == 1
    assert "start one with `tidal serve`" in answer.stderr


def test_nothing_answers() -> None:
    for target in ("http://127.0.0.1:1/metrics", "http://127.0.0.1:1"):
        answer = top(target)
        assert answer.exit_code == 1
        assert "does not answer" in answer.stderr
        assert len(answer.stderr.splitlines()) == 1


def test_something_else_answers(site: str) -> None:
    answer = top(f"{site}/metrics")
    assert (answer.exit_code, "is not the metrics of a tritonserver" in answer.stderr) == (1, True)
    answer = top(site)
    assert (answer.exit_code, "no gateway of Tidal" in answer.stderr) == (1, True)
