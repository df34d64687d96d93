"""Load through a gateway whose answers must survive, and clients that disconnect. The reliability suite uses it too."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.gateway.http_load import Connection, Request
from testing.loop_thread import LoopThread
from testing.serving import Served

_SHOWN = 300
_STUCK_S = 240.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that has ended.

    Attributes:
        path: Path of the URL.
        seconds: Time until it ended.
        status: HTTP status; 0 if the connection broke.
        answer: Beginning of an answer other than 200.
    """

    path: str
    seconds: float
    status: int
    answer: str = ""


class SteadyLoad:
    """Clients that send requests one after the other, each over its own connection, until the block ends.

    Args:
        requests: Requests; each has its own clients.
        clients: Number of clients of each.
        pause_s: Pause between two requests of a client, in seconds.
    """

    def __init__(self, requests: Sequence[Request], *, clients: int = 4, pause_s: float = 0.02) -> None:
        self.sent: list[Sent] = []
        self._requests, self._clients, self._pause_s = requests, clients, pause_s
        self._thread = LoopThread("steady-load", self._run)

    def __enter__(self) -> SteadyLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.end()

    @property
    def failures(self) -> list[str]:
        """What was answered otherwise than by 200."""
        return [f"{each.path}: {each.status} {each.answer}" for each in list(self.sent) if each.status != 200]

    def wait_for(self, requests: int, seconds: float = 120.0) -> None:
        """Wait until a number of further requests have ended, or the time has passed."""
        wanted, until = len(self.sent) + requests, time.monotonic() + seconds
        while len(self.sent) < wanted and time.monotonic() < until:
            time.sleep(0.01)

    async def _run(self) -> None:
        await asyncio.gather(*(self._client(each) for each in self._requests for _ in range(self._clients)))

    async def _client(self, request: Request) -> None:
        content, connection = request.encoded(), None
        while not self._thread.done.is_set():
            began = time.monotonic()
            try:
                connection = connection or await Connection.open(request.address)
                async with asyncio.timeout(_STUCK_S):
                    status, body = await connection.send(content)
            except (OSError, TimeoutError) as error:
                self.sent.append(Sent(request.path, time.monotonic() - began, 0, repr(error)))
                connection = None
                await asyncio.sleep(0.1)
                continue
            shown = "" if status == 200 else body[:_SHOWN].decode(errors="replace")
            self.sent.append(Sent(request.path, time.monotonic() - began, status, shown))
            await asyncio.sleep(self._pause_s)
        if connection is not None:
            connection.close()


def disconnect(requests: Sequence[Request], count: int, *, clients: int = 20, latest_s: float = 0.3) -> int:
    """Send requests and disconnect at a random moment; return how many had no complete answer yet.

    Args:
        requests: Requests, sent in turns.
        count: Number of requests in all.
        clients: Number of clients.
        latest_s: Longest time until a client disconnects, in seconds.
    """
    return asyncio.run(_disconnect(requests, count, clients, latest_s))


async def _disconnect(requests: Sequence[Request], count: int, clients: int, latest_s: float) -> int:
    numbers, early = iter(range(count)), 0

    async def one(seed: int) -> None:
        nonlocal early
        draw = random.Random(seed)
        for number in numbers:
            request = requests[number % len(requests)]
            connection = await Connection.open(request.address)
            sending = asyncio.ensure_future(connection.stream(request.encoded(), b"[DONE]"))
            _, waiting = await asyncio.wait([sending], timeout=draw.uniform(0, latest_s))
            early += bool(waiting)
            connection.close()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    await asyncio.gather(*map(one, range(clients)))
    return early


def taken_slots(served: Served, model: str) -> float:
    """Return the number of slots of a decoder that are in use, from the server's /metrics."""
    with urllib.request.urlopen(f"http://{served.report['metrics']}/metrics", timeout=10) as response:
        page = response.read().decode()
    found = re.findall(rf'^tidal_flover_taken_slots\{{[^}}]*"{model}"[^}}]*\}} (\S+)', page, re.MULTILINE)
    return sum(map(float, found))


def is_ready(served: Served) -> bool:
    """Whether a `tidal serve` reports that all its models answer."""
    try:
        with urllib.request.urlopen(f"http://{served.report['status']}/ready", timeout=2) as response:
            found = json.load(response)
    except (OSError, ValueError):
        return False
    return not found["not_ready"] and not found.get("restarting")


def upstream(served: Served) -> str:
    """Return a server as the option `--server` of a gateway names it."""
    return f"{served.report['grpc']},status={served.report['status']}"
