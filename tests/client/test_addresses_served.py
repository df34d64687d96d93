"""Two `tidal serve`, of which one loses its tritonserver by SIGKILL under load: no call fails, and it is used again."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from testing.serving import Served, serving
from testing.waiting import until
from tests.client.conftest import write_probe
from tidal_client import AsyncClient, Client, RequestError

pytestmark = pytest.mark.server

LATE_S = 120.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    with ExitStack() as stack:
        served = []
        for name in ("first", "second"):
            folder: Path = tmp_path_factory.mktemp(name)
            write_probe(folder / "repository", folder / "probe.log")
            served.append(stack.enter_context(serving(folder / "repository", folder)))
        yield served[0], served[1]


def answered(served: Served) -> int:
    """Number of requests that a server's model has answered since it started."""
    statistics = served.http().get_inference_statistics("probe")["model_stats"]
    return sum(each["inference_stats"]["success"]["count"] for each in statistics)


def is_ready(url: str) -> bool:
    with Client(url) as client:
        try:
            return client.ready("probe")
        except RequestError:
            return False


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_killed_server_fails_no_call(pair: tuple[Served, Served], protocol: str) -> None:
    urls = [f"{protocol}://{served.report[protocol]}" for served in pair]
    stop, counts = threading.Event(), Counter[str]()

    def blocking() -> None:
        with Client(urls, timeout_s=LATE_S) as client:

            def ask() -> None:
                while not stop.is_set():
                    counts[client.classify("probe", "hi", outputs=["label"]).label or ""] += 1

            with ThreadPoolExecutor(4) as pool:
                for each in [pool.submit(ask) for _ in range(4)]:
                    each.result()

    async def awaited() -> None:
        async with AsyncClient(urls, timeout_s=LATE_S) as client:

            async def ask() -> None:
                while not stop.is_set():
                    counts[(await client.classify("probe", "hi", outputs=["label"])).label or ""] += 1

            await asyncio.gather(*(ask() for _ in range(4)))

    with ThreadPoolExecutor() as pool:
        running = [pool.submit(blocking), pool.submit(asyncio.run, awaited())]
        try:
            assert until(lambda: counts["short"] > 100, LATE_S)
            old = pair[0].state["server_pid"]
            psutil.Process(old).kill()
            assert until(lambda: pair[0].state["server_pid"] != old, LATE_S)
            assert until(lambda: is_ready(urls[0]), LATE_S)
            # Both clients use it again: their calls are the only ones.
            assert until(lambda: answered(pair[0]) > 100, LATE_S)
        finally:
            stop.set()
        for each in running:
            each.result()
    assert counts.keys() == {"short"}
