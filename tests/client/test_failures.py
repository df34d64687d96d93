"""Servers that hang, crash or do not exist, and cancelled requests."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from testing.processes import stop
from tests.client.conftest import ProbeServer, probe_server
from tidal_client import AsyncClient, Cancelled, Client, ConnectionFailed, DeadlineExceeded
from tidal_client.client import DEFAULT_TIMEOUT_S

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbeServer]:
    """A server that these tests may stop and kill."""
    with probe_server(tmp_path_factory.mktemp("own")) as started:
        yield started


def test_the_default_timeout_is_30_s() -> None:
    assert DEFAULT_TIMEOUT_S == 30.0
    with Client("http://127.0.0.1:1") as http, Client("grpc://127.0.0.1:1", timeout_s=3) as grpc:
        assert http._timeout(None) == 30.0
        assert grpc._timeout(None) == 3
        assert grpc._timeout(1.5) == 1.5


def test_a_late_response_is_a_timeout_and_later_requests_work(url: str) -> None:
    with Client(url, timeout_s=0.3) as client:
        with pytest.raises(DeadlineExceeded, match=r"within 0\.3 s"):
            client.classify("probe", "sleep 1")
        for i in range(20):
            assert client.classify("probe", f"text {i}", timeout_s=20).other["echo"].item() == f"text {i}|".encode()

    async def run() -> None:
        async with AsyncClient(url) as client:
            with pytest.raises(TimeoutError, match=r"within 0\.3 s"):
                await client.classify("probe", "sleep 1", timeout_s=0.3)
            assert (await client.classify("probe", "text")).label == "short"

    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_hung_server_is_a_timeout_everywhere(own_server: ProbeServer, protocol: str) -> None:
    url = own_server.url(protocol)
    stop(own_server.pid)
    try:
        with Client(url, timeout_s=0.3) as client:
            with pytest.raises(DeadlineExceeded):
                client.classify("probe", "hi")
            with pytest.raises(DeadlineExceeded):
                client.ready("probe")
            with pytest.raises(DeadlineExceeded):
                client.metadata("probe")

        async def run() -> None:
            async with AsyncClient(url, timeout_s=0.3) as client:
                with pytest.raises(DeadlineExceeded):
                    await client.classify("probe", "hi")
                with pytest.raises(DeadlineExceeded):
                    await client.ready()
                with pytest.raises(DeadlineExceeded):
                    await client.metadata("probe")

        asyncio.run(run())
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
    with Client(url) as client:
        assert client.ready("probe")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_no_server_at_the_address(closed_port: int, protocol: str) -> None:
    url = f"{protocol}://127.0.0.1:{closed_port}"
    with Client(url) as client, pytest.raises(ConnectionFailed, match=f"no connection to {url}"):
        client.classify("probe", "hi")

    async def run() -> None:
        async with AsyncClient(url) as client:
            with pytest.raises(ConnectionError, match=f"no connection to {url}"):
                await client.ready()

    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_other_protocols_port(server: ProbeServer, protocol: str) -> None:
    other, location = {"grpc": ("http", server.http), "http": ("grpc", server.grpc)}[protocol]
    url = location.replace(other, protocol)
    name = {"http": "HTTP", "grpc": "gRPC"}
    message = (
        f"does not speak plain {name[protocol]}: if it is the server's {name[other]} port, use {other}://HOST:PORT"
    )
    with Client(url, timeout_s=5) as client:
        for call in (client.classify, client.generate):
            with pytest.raises(ConnectionFailed, match=message):
                call("probe", "hi")

    async def run() -> None:
        async with AsyncClient(url, timeout_s=5) as client:
            for call in (client.classify, client.generate):
                with pytest.raises(ConnectionFailed, match=message):
                    await call("probe", "hi")

    asyncio.run(run())


def test_cancelling_the_task_cancels_the_request_on_the_server(server: ProbeServer) -> None:
    async def run() -> None:
        async with AsyncClient(server.grpc) as client:
            task = asyncio.create_task(client.classify("probe", "sleep 20", request_id="cancelled-task"))
            assert await asyncio.to_thread(server.wait_for_log, "received cancelled-task")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.classify("probe", "hi")).label == "short"

    asyncio.run(run())
    assert server.wait_for_log("cancelled cancelled-task")


def test_a_timeout_over_grpc_cancels_the_request(server: ProbeServer) -> None:
    with Client(server.grpc) as client, pytest.raises(DeadlineExceeded):
        client.classify("probe", "sleep 20", request_id="timed-out", timeout_s=2)
    assert server.wait_for_log("cancelled timed-out")


def test_cancelling_an_http_task_leaves_the_client_usable(server: ProbeServer) -> None:
    async def run() -> None:
        async with AsyncClient(server.http) as client:
            task = asyncio.create_task(client.classify("probe", "sleep 1", request_id="left"))
            assert await asyncio.to_thread(server.wait_for_log, "received left")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.classify("probe", "hi")).label == "short"

    asyncio.run(run())


def test_closing_ends_calls_of_other_threads(url: str, server: ProbeServer) -> None:
    client = Client(url)
    client.classify("probe", "hi")
    with ThreadPoolExecutor(1) as pool:
        request_id = f"open over {url[:4]}"
        waiting = pool.submit(client.classify, "probe", "sleep 3", request_id=request_id)
        assert server.wait_for_log(f"received {request_id}")
        client.close()
        with pytest.raises(Cancelled):
            waiting.result(timeout=20)


def test_a_killed_server_is_a_failed_connection(own_server: ProbeServer) -> None:
    """The last test of this module: it kills the server."""
    caught: dict[str, BaseException] = {}

    def ask(url: str) -> None:
        with Client(url) as client:
            try:
                client.classify("probe", "sleep 20", request_id=f"lost over {url[:4]}")
            except Exception as error:
                caught[url] = error

    threads = [threading.Thread(target=ask, args=(url,)) for url in (own_server.http, own_server.grpc)]
    for thread in threads:
        thread.start()
    assert all(own_server.wait_for_log(f"received lost over {protocol}") for protocol in ("http", "grpc"))
    os.kill(own_server.pid, signal.SIGKILL)
    for thread in threads:
        thread.join(25)
    assert {url: type(error) for url, error in caught.items()} == {
        own_server.http: ConnectionFailed,
        own_server.grpc: ConnectionFailed,
    }
