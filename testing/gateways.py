"""`tidal gateway` as a subprocess, started as users start it."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import psutil

from testing.serving import TIDAL, environment_in


@cache
def _trusted() -> ssl.SSLContext:
    """The settings that httpx reads for each call otherwise, for 0.1 s of a slow processor."""
    return httpx.create_ssl_context()


@dataclass(frozen=True)
class RunningGateway:
    """A running `tidal gateway`."""

    process: subprocess.Popen[str]
    report: dict[str, Any]
    folder: Path

    @property
    def url(self) -> str:
        return str(self.report["url"])

    @property
    def address(self) -> str:
        """``host:port`` of the API."""
        return self.url.partition("://")[2]

    def post(self, path: str, document: Any = None, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=document, timeout=30, **{"verify": _trusted(), **options})

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=30, **{"verify": _trusted(), **options})

    def log(self) -> list[dict[str, Any]]:
        """Lines of the access log."""
        return [json.loads(line) for line in _lines(self.folder / "access.jsonl")]

    def metrics(self) -> str:
        return httpx.get(self.report["metrics"], timeout=10, verify=_trusted()).text

    def workers(self) -> list[psutil.Process]:
        """Processes that answer requests."""
        return [
            each
            for each in psutil.Process(self.process.pid).children()
            if each.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(each.cmdline())
        ]

    def cpu_seconds(self) -> float:
        """Processor time of all its processes so far."""
        first = psutil.Process(self.process.pid)
        times = [each.cpu_times() for each in (first, *first.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    def ready(self) -> bool:
        """Whether a worker has started and a server is up."""
        try:
            return self.get("/health").status_code == 200
        except httpx.TransportError:
            return False


def _lines(path: Path) -> list[str]:
    """Lines of a file; unlike `str.splitlines`, other separators of Unicode, which paths may have, end none."""
    return path.read_text().removesuffix("\n").split("\n") if path.stat().st_size else []


@contextmanager
def running_gateway(folder: Path, *options: str) -> Iterator[RunningGateway]:
    """Run `tidal gateway` until the end of the block."""
    environment = environment_in(folder)
    log = str(folder / "access.jsonl")
    arguments = ["gateway", "--json", "--port", "0", "--metrics-port", "0", "--access-log", log]
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [*TIDAL, *arguments, *options], env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "stderr").read_text()
        yield RunningGateway(process, json.loads(line), folder)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
