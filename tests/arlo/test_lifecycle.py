"""Loading, publishing, restarting and ending an `arlo` model under load, and refused loads."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from testing.config import parameter
from testing.servers import RunningServer, running_server
from tests.arlo.conftest import Built
from tests.arlo.test_served import make_texts
from tidal.errors import Internal
from tidal.repository.entries import ModelEntry
from tidal.server.child import RunningServer as ServedByTidal
from tidal.server.child import tidal_serve
from tidal.server.stubs import live_stubs
from tidal_client import AsyncClient, Client, RequestError, Unavailable

pytestmark = pytest.mark.server


def publish_again(entry: ModelEntry) -> int:
    """Publish the newest version's files as a new version; return its number."""
    latest = entry.latest()
    assert latest is not None
    staging = entry.new_staging()
    shutil.copytree(latest, staging, dirs_exist_ok=True)
    return entry.publish(staging)


async def ask_until(url: str, done: Callable[[], bool], at_least: int) -> tuple[int, list[str]]:
    """Keep eight queries in flight until `done` and `at_least` were sent; return their number and the failures."""
    sent, failures = 0, list[str]()
    texts = make_texts(64, seed=9)
    async with AsyncClient(url, timeout_s=30) as client:

        async def one() -> None:
            nonlocal sent
            while not done() or sent < at_least:
                sent += 1
                try:
                    await client.classify("tiny", texts[sent % len(texts)], outputs=["label"])
                except RequestError as error:
                    failures.append(f"{type(error).__name__}: {error}")

        await asyncio.gather(*(one() for _ in range(8)))
    return sent, failures


def served_again_after_a_kill(server: ServedByTidal) -> bool:
    """Kill the model's process and wait until it serves again; return False where tritonserver itself ended.

    tritonserver 2.51 ends when the process held a lock that they share, see docs/explanation/reliability.md.
    """
    before = [stub.pid for stub in live_stubs(server.state.server_pid) if stub.model == "tiny"]
    assert before
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 60
    with Client(server.grpc, timeout_s=5) as client:
        while time.monotonic() < until:
            try:
                assert client.classify("tiny", "good").label
            except RequestError:
                if not psutil.pid_exists(server.state.server_pid):
                    return False
                time.sleep(0.1)
            else:
                return True
    assert server.state.log is not None
    pytest.fail(f"the model was not served again: {server.state.log.read_text()[-5000:]}")


def test_publish_reload_and_a_killed_process_under_tidal_serve(built: Built, tmp_path: Path) -> None:
    built.copy(tmp_path, "tiny")
    entry = ModelEntry(tmp_path / "tiny")
    with tidal_serve(tmp_path) as server:
        finished = threading.Event()
        outputs: list[str] = []

        def publish() -> None:
            try:
                for _ in range(3):
                    publish_again(entry)
                    command = [sys.executable, "-m", "tidal_client.main", "models", "reload", "tiny"]
                    command += ["--server", server.state.http]
                    env = {**os.environ, "TIDAL_ADMIN_KEY": server.state.key or ""}
                    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
                    outputs.append(f"{result.returncode} {result.stdout} {result.stderr}")
            finally:
                finished.set()

        thread = threading.Thread(target=publish)
        thread.start()
        sent, failures = asyncio.run(ask_until(server.grpc, finished.is_set, 1000))
        thread.join()
        assert all(line.startswith("0 ") for line in outputs), outputs
        assert sent >= 1000
        assert failures == []
        assert {row.version for row in server.control.index() if row.state == "READY"} == {4}

        again = served_again_after_a_kill(server)
    for _ in range(2):
        if not again:
            with tidal_serve(tmp_path) as server:
                again = served_again_after_a_kill(server)
    assert again, "tritonserver ended with a killed process each time"


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_work_in_flight_is_answered_when_the_server_ends(built: Built, tmp_path: Path, protocol: str) -> None:
    built.copy(tmp_path, "tiny")
    with running_server(tmp_path) as server:
        url = f"{protocol}://{getattr(server, protocol)}"
        with Client(url) as client, ThreadPoolExecutor(24) as pool:
            client.classify("tiny", "good")
            texts = make_texts(64, seed=4)
            futures = [pool.submit(client.classify_many, "tiny", texts) for _ in range(24)]
            time.sleep(0.05)
            os.kill(server.pid, signal.SIGTERM)
            answered = 0
            for future in futures:
                try:
                    answered += len(future.result(timeout=60))
                except RequestError as error:  # HTTP takes no new connections once the server ends
                    assert not isinstance(error, TimeoutError), error
            assert answered >= 64
        psutil.Process(server.pid).wait(60)
    assert server.shared_memory() == {}
    assert server.processes() == []


def test_unload_answers_accepted_requests(built: Built, tmp_path: Path) -> None:
    built.copy(tmp_path, "tiny")
    with running_server(tmp_path) as server, Client(f"grpc://{server.grpc}") as client:
        client.classify("tiny", "good")
        with ThreadPoolExecutor(16) as pool:
            futures = [pool.submit(client.classify_many, "tiny", make_texts(64, seed=4)) for _ in range(16)]
            time.sleep(0.05)
            server.control.unload("tiny")
            outcomes = []
            for future in futures:
                try:
                    outcomes.append(len(future.result(timeout=60)))
                except RequestError as error:
                    assert not isinstance(error, TimeoutError), error
                    outcomes.append(0)
        assert 64 in outcomes
        with pytest.raises(Unavailable):
            client.classify("tiny", "good")


@pytest.fixture(scope="module")
def strict_server(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("strict")
    built.copy(repository, "good")
    with running_server(repository) as running:
        yield running


@pytest.fixture
def strict(strict_server: RunningServer) -> Iterator[RunningServer]:
    """A server of the model `good`; each test adds a model `bad`, which is removed after it."""
    yield strict_server
    shutil.rmtree(strict_server.repository / "bad")


class TestRefusedAtLoad:
    """Errors say what to do, and the server keeps serving other models."""

    def check(self, server: RunningServer, message: str) -> None:
        with Client(f"grpc://{server.grpc}") as client:
            with pytest.raises(Internal) as caught:
                server.control.load("bad", None)
            assert message in str(caught.value)
            assert client.classify("good", "good").label

    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            (parameter("truncat", "true"), "did you mean 'truncate'?"),
            (parameter("service_weight", "soon"), "parameter 'service_weight' in config.pbtxt is 'soon'"),
            (parameter("max_queue_size", "0"), "parameter 'max_queue_size' in config.pbtxt is '0'"),
            ('output { name: "pooled" data_type: TYPE_FP32 dims: [ -1 ] }\n', "declares the output 'pooled'"),
        ],
    )
    def test_config(self, built: Built, strict: RunningServer, extra: str, message: str) -> None:
        built.copy(strict.repository, "bad", extra_config=extra)
        self.check(strict, message)

    def _with_manifest(self, built: Built, repository: Path, change: Callable[[dict[str, Any]], None]) -> None:
        built.copy(repository, "bad")
        file = repository / "bad" / "1" / "manifest.json"
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))

    def test_a_version_built_for_another_device(self, built: Built, strict: RunningServer) -> None:
        self._with_manifest(built, strict.repository, lambda m: m["device"].update(name="Another CPU"))
        self.check(strict, "was built for Another CPU")

    def test_a_version_built_with_another_library(self, built: Built, strict: RunningServer) -> None:
        self._with_manifest(built, strict.repository, lambda m: m["libraries"].update(openvino="2020.1"))
        self.check(strict, f"rebuild with `tidal build tiny.yaml --repository {strict.repository} --force`")

    def test_a_damaged_file(self, built: Built, strict: RunningServer) -> None:
        built.copy(strict.repository, "bad")
        weights = next((strict.repository / "bad" / "1" / "engines").glob("*.bin"))
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        self.check(strict, "differs from what was published")
