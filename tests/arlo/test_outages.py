"""Requests to an `arlo` model under `tidal serve` while versions are published and Python stubs are killed."""

from __future__ import annotations

import asyncio
import os
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import psutil
import pytest

from testing.waiting import until
from tests.arlo.conftest import Built
from tests.arlo.test_lifecycle import ask_until, publish_again
from tests.arlo.test_served import make_texts
from tidal.repository.entries import ModelEntry
from tidal.server.child import RunningServer, tidal_serve
from tidal.server.control import ModelState
from tidal.server.stubs import live_stubs
from tidal_client import Client, RequestError

pytestmark = pytest.mark.server

# Seconds within which a model whose stub was killed serves again on a machine that is not overloaded.
SERVED_AGAIN_S = 5.0
CLIENT_TIMEOUT_S = 3.0


def ready(server: RunningServer, model: str) -> list[ModelState]:
    return [row for row in server.control.index() if row.name == model and row.state == "READY"]


def in_flight(server: RunningServer, model: str) -> float:
    """Return the published number of queries that a model has accepted and not answered."""
    with urllib.request.urlopen(f"http://{server.state.metrics}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    found = (line for line in lines if line.startswith("tidal_arlo_in_flight_queries{") and f'model="{model}"' in line)
    return sum(float(line.split()[-1]) for line in found)


@pytest.fixture(scope="module")
def repository(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` is published again; `grpc` and `http` are killed under clients of that protocol; `other` is left alone."""
    folder = tmp_path_factory.mktemp("outages")
    for name in ("tiny", "grpc", "http", "other"):
        built.copy(folder, name)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    """tritonserver counts requests of a killed stub as in flight, so its shutdown gets little time."""
    with tidal_serve(repository, "--exit-timeout", "3") as running:
        yield running


def test_no_request_over_http_fails_while_versions_are_published(server: RunningServer, repository: Path) -> None:
    entry = ModelEntry(repository / "tiny")
    served: list[int] = []
    finished = threading.Event()

    def publish() -> None:
        try:
            for _ in range(3):
                publish_again(entry)
                server.control.load("tiny", None)
                served.extend(row.version for row in ready(server, "tiny"))
        finally:
            finished.set()

    thread = threading.Thread(target=publish)
    thread.start()
    sent, failures = asyncio.run(ask_until(server.http, finished.is_set, 1000))
    thread.join()
    assert served == [2, 3, 4]
    assert sent >= 1000
    assert failures == []


def skip_if_aborted(server: RunningServer) -> None:
    """Skip where tritonserver itself aborted (boost's lock_exception): the stub held a lock that they share."""
    if not psutil.pid_exists(server.state.server_pid):
        pytest.skip("tritonserver aborted: the kill came while the stub held a lock that it shares with the server")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_stub_killed_with_requests_in_flight(server: RunningServer, protocol: str) -> None:
    skip_if_aborted(server)
    url, model = getattr(server, protocol), protocol
    texts = make_texts(64, seed=6)
    killed, over = threading.Event(), threading.Event()

    def query_killed() -> str:
        """Send requests until the kill; return the status of the last."""
        while True:
            try:
                client.classify_many(model, texts, outputs=["label"])
            except RequestError as error:
                return error.code
            if killed.is_set():
                return "OK"

    def query_other() -> int:
        count = 0
        while not over.wait(0.05):  # often enough to notice failures, without delaying the restart
            assert bystander.classify("other", texts[count % 64]).label
            count += 1
        return count

    def serves() -> bool:
        try:
            return bool(impatient.classify(model, "good").label)
        except RequestError:
            return False

    with (
        Client(url, timeout_s=CLIENT_TIMEOUT_S) as client,
        Client(url, timeout_s=1.0) as impatient,
        Client(url) as bystander,
        ThreadPoolExecutor(17) as pool,
    ):
        before = client.classify(model, texts[0])
        other = pool.submit(query_other)
        asking = [pool.submit(query_killed) for _ in range(16)]
        try:
            assert until(lambda: in_flight(server, model) >= 64)
            (stub,) = [stub for stub in live_stubs(server.state.server_pid) if stub.model == model]
            psutil.Process(stub.pid).kill()
            killed.set()
            # The restart of Python takes processor time, longer in proportion to the load of the machine.
            overload = max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
            if not until(serves, SERVED_AGAIN_S * overload):
                skip_if_aborted(server)
                pytest.fail("the killed model is not served again")
            # The client's timeout ends the requests that the stub had accepted.
            assert not wait(asking, 10 * CLIENT_TIMEOUT_S).not_done
        finally:
            killed.set()
            over.set()
        outcomes = [future.result() for future in asking]
        assert set(outcomes) - {"OK"}, "nothing was in flight"
        assert other.result(30) > 0
        after = client.classify(model, texts[0])
    assert after.label == before.label
    assert psutil.Process(server.state.server_pid).is_running()
    assert [row.version for row in ready(server, model)] == [1]
    print(f"{protocol}: {outcomes}")
