"""Two cheap servers that a test kills and starts again, and calls of clients of either kind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from testing.waiting import until
from tests.client.stub_server import STREAMED
from tidal.server.endpoints import choose_endpoints
from tidal_client import AsyncClient, Client, ConnectionFailed

ROWS = {"a": 4, "b": 8}


class Server:
    """A stub server that can be killed and started again at its ports."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self._log = name, log
        ports = choose_endpoints("127.0.0.1", 0, 0, 0)
        self._ports = {"http": ports.http, "grpc": ports.grpc}
        self._process: subprocess.Popen[str] | None = None

    def url(self, protocol: str) -> str:
        return f"{protocol}://127.0.0.1:{self._ports[protocol]}"

    def start(self) -> None:
        if self._process is not None:
            return
        command = [sys.executable, "-m", "tests.client.stub_server", self.name]
        command += [str(self._ports["http"]), str(self._ports["grpc"]), str(ROWS[self.name]), str(self._log)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        if self._process is not None:
            with self._process as process:
                process.kill()
            self._process = None


class Pair:
    """Two servers and what they have logged."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self.a, self.b = Server("a", self._log), Server("b", self._log)

    def urls(self, protocols: str) -> list[str]:
        first, _, second = protocols.partition("+")
        return [self.a.url(first), self.b.url(second or first)]

    def lines(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def forget(self) -> None:
        """Empty the log."""
        self._log.write_text("")

    def count(self, name: str) -> int:
        """Number of requests of a server."""
        return sum(line.startswith(name) for line in self.lines())

    def has_seen(self, name: str, requests: int) -> bool:
        return self.count(name) >= requests

    def holds(self, line: str) -> bool:
        return until(lambda: line in self.lines())


class Calls:
    """Blocking calls of a client of either kind, from any thread."""

    def __init__(self, urls: list[str], *, awaited: bool, **options: Any) -> None:
        self._client: Any = AsyncClient(urls, **options) if awaited else Client(urls, **options)
        self._loop = asyncio.new_event_loop() if awaited else None
        if self._loop is not None:
            threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, coroutine: Any) -> Any:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def __call__(self, method: str, *args: Any, **kwargs: Any) -> Any:
        found = getattr(self._client, method)(*args, **kwargs)
        return found if self._loop is None else self.run(found)

    def name(self, text: str = "hi", **kwargs: Any) -> str:
        """The name of the server that answers a text."""
        return str(self("classify", "m", text, **kwargs).label)

    def parts(self, text: str) -> Iterator[str]:
        stream = self._client.generate_stream("m", text)
        if self._loop is None:
            yield from (part.text for part in stream)
            return
        while (part := self.run(anext(stream, None))) is not None:
            yield part.text

    @property
    def outstanding(self) -> tuple[int, ...]:
        found: tuple[int, ...] = self._client._transport._routes._balance.outstanding
        return found

    def close(self) -> None:
        self("close")
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


def reached(url: str, *, awaited: bool) -> bool:
    try:
        with closing(Calls([url], awaited=awaited)) as calls:
            return bool(calls("ready"))
    except ConnectionFailed:
        return False


def _done_or_held(future: Future[Any], pair: Pair) -> bool:
    return future.done() or any(line.startswith("a held") for line in pair.lines())


def held_by_a(pool: ThreadPoolExecutor, pair: Pair, ask: Callable[[], Any]) -> Future[Any]:
    """Send calls that only the first server holds until it holds one."""
    while True:
        future = pool.submit(ask)
        assert until(partial(_done_or_held, future, pair))
        if not future.done():
            return future
        assert future.result() in ("b", ["b"] * STREAMED)
