"""Unloading and ending servers of `arlo` models under load, and refused loads."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from testing.config import parameter
from testing.servers import RunningServer, running_server
from testing.waiting import until
from tests.arlo.conftest import Built
from tests.arlo.support import make_texts
from tidal.errors import Internal
from tidal_client import Client, RequestError, Unavailable

pytestmark = pytest.mark.server

ROWS = 64


def send(pool: ThreadPoolExecutor, client: Client, model: str, requests: int) -> list[Future[int]]:
    """Send requests of `ROWS` rows at once; each future returns its number of answers."""
    texts = make_texts(ROWS, seed=4)
    return [pool.submit(lambda: len(client.classify_many(model, texts))) for _ in range(requests)]


def test_requests_in_flight_are_answered_when_the_server_ends(built: Built, partitioned: Path, tmp_path: Path) -> None:
    """Of a polymorphic and a partitioned model, over both protocols.

    The runtime models are unreachable from then on: queries of the partitioned model that have not run fail at once.
    """
    for folder in partitioned.iterdir():
        shutil.copytree(folder, tmp_path / folder.name)
    built.copy(tmp_path, "whole")
    with running_server(tmp_path) as server:
        urls = (f"grpc://{server.grpc}", f"http://{server.http}")
        with Client(urls[0]) as grpc, Client(urls[1]) as http, ThreadPoolExecutor(32) as pool:
            for client in (grpc, http):
                client.classify("tiny", "good")
                client.classify("whole", "good")
            whole = [*send(pool, grpc, "whole", 12), *send(pool, http, "whole", 8)]
            split = send(pool, grpc, "tiny", 12)
            assert until(lambda: any(future.done() for future in (*whole, *split)))
            os.kill(server.pid, signal.SIGTERM)
            answered = 0
            for future in whole:
                try:
                    answered += future.result(timeout=60)
                except RequestError as error:  # HTTP accepts no new connections once the server ends
                    assert not isinstance(error, TimeoutError), error
            assert answered >= ROWS
            for future in split:
                try:
                    assert future.result(timeout=60) == ROWS
                except RequestError as error:
                    assert isinstance(error, Unavailable), error
        psutil.Process(server.pid).wait(60)
        assert server.shared_memory() == {}
        assert server.processes() == []
        assert "Signal (11)" not in server.log_text()


def test_unload_answers_accepted_requests(built: Built, server: RunningServer) -> None:
    built.copy(server.repository, "spare")
    server.control.load("spare", None)
    with Client(f"grpc://{server.grpc}") as client:
        client.classify("spare", "good")
        with ThreadPoolExecutor(16) as pool:
            futures = send(pool, client, "spare", 16)
            assert until(lambda: any(future.done() for future in futures))
            server.control.unload("spare")
            outcomes = []
            for future in futures:
                try:
                    outcomes.append(future.result(timeout=60))
                except RequestError as error:
                    assert not isinstance(error, TimeoutError), error
                    outcomes.append(0)
        assert ROWS in outcomes
        with pytest.raises(Unavailable):
            client.classify("spare", "good")
    shutil.rmtree(server.repository / "spare")


@pytest.fixture
def _without_bad(server: RunningServer) -> Iterator[None]:
    """Remove the model `bad`, which a test adds to the server's repository."""
    yield
    shutil.rmtree(server.repository / "bad")


@pytest.mark.usefixtures("_without_bad")
class TestRefusedAtLoad:
    """Errors say what to do, and the server keeps serving other models."""

    def check(self, server: RunningServer, message: str) -> None:
        with Client(f"grpc://{server.grpc}") as client:
            with pytest.raises(Internal) as caught:
                server.control.load("bad", None)
            assert message in str(caught.value)
            assert client.classify("tiny", "good").label

    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            (parameter("truncat", "true"), "did you mean 'truncate'?"),
            ('output { name: "pooled" data_type: TYPE_FP32 dims: [ -1 ] }\n', "declares the output 'pooled'"),
        ],
    )
    def test_config(self, built: Built, server: RunningServer, extra: str, message: str) -> None:
        built.copy(server.repository, "bad", extra_config=extra)
        self.check(server, message)

    def test_a_damaged_file(self, built: Built, server: RunningServer) -> None:
        built.copy(server.repository, "bad")
        weights = next((server.repository / "bad" / "1" / "engines").glob("*.bin"))
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        self.check(server, "differs from what was published")
