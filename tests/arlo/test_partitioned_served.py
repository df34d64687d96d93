"""A partitioned model under `tidal serve`: answers, and new allocations, new versions and crashes under load."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from testing.config import parameter
from testing.metrics import published
from testing.models import make_tiny_classifier
from testing.servers import running_server
from testing.waiting import until
from tests.arlo.conftest import MAX_LENGTH
from tests.arlo.test_served import make_texts, text_rows
from tidal.errors import Internal
from tidal.repository.allocation import ALLOCATION_FILE
from tidal.repository.names import runtime_model
from tidal.server.allocate import LiveFront, allocate, partitioned_model
from tidal.server.change import reload
from tidal.server.child import RunningServer, tidal_serve
from tidal.server.gauges import used_instances
from tidal.server.stubs import live_stubs
from tidal_builders.arlo.build import build_arlo
from tidal_builders.specs import parse_spec
from tidal_client import AsyncClient, Client, RequestError, Unavailable

pytestmark = pytest.mark.server

LENGTHS = (16, 32, MAX_LENGTH)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_classifier(tmp_path_factory.mktemp("source") / "model", max_position=MAX_LENGTH)


@pytest.fixture(scope="module")
def repository(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny`, and a copy `hasty` with an SLO so short that one query fills an instance."""
    folder = tmp_path_factory.mktemp("partitioned") / "models"
    spec = {"kind": "arlo", "name": "tiny", "model": str(source), "lengths": list(LENGTHS), "max_batch": 1}
    spec |= {"outputs": ["logits", "attention_received"], "placement": "partitioned", "slo_ms": 2000}
    build_arlo(parse_spec(spec, "test"), folder, spec_file=Path("tiny.yaml"))
    copy_partitioned(folder, "tiny", "hasty", slo_ms=0.001)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    # tritonserver counts the last query of a killed instance as in flight, so its shutdown takes all of this time.
    with tidal_serve(repository, "--exit-timeout", "5") as running:
        yield running


@pytest.fixture
def own_server(repository: Path, tmp_path: Path) -> Iterator[RunningServer]:
    """A server for one test, which may take it down."""
    shutil.copytree(repository, tmp_path / "models")
    with tidal_serve(tmp_path / "models", "--exit-timeout", "5") as running:
        yield running


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: RunningServer) -> str:
    return str(getattr(server, request.param))


@pytest.fixture(scope="module")
def reference(source: Path) -> Callable[[str], np.ndarray[Any, Any]]:
    """Logits of the unmodified model for one text alone."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(source).eval()
    tokenizer = AutoTokenizer.from_pretrained(source)

    def logits(text: str) -> np.ndarray[Any, Any]:
        with torch.inference_mode():
            return np.asarray(model(**tokenizer(text, return_tensors="pt")).logits[0].numpy())

    return logits


def copy_partitioned(repository: Path, name: str, copy: str, *, slo_ms: object) -> None:
    """Copy a partitioned model under another name, with another SLO."""
    for folder in (name, *(runtime_model(name, length) for length in LENGTHS)):
        target = repository / folder.replace(name, copy, 1)
        shutil.copytree(repository / folder, target)
        config = target / "config.pbtxt"
        text = config.read_text().replace(f'name: "{name}', f'name: "{copy}')
        config.write_text(re.sub(r'(key: "slo_ms" value: \{ string_value: ")[^"]*', rf"\g<1>{slo_ms}", text))
        for manifest in target.glob("*/manifest.json"):
            manifest.write_text(manifest.read_text().replace(f'"{name}"', f'"{copy}"'))


def publish_again(repository: Path, name: str) -> int:
    """Publish the newest version of the front and its runtime models again, the front last; return its number."""
    version = max(int(path.name) for path in (repository / name).iterdir() if path.name.isdigit())
    for folder in (*(repository / runtime_model(name, length) for length in LENGTHS), repository / name):
        shutil.copytree(folder / str(version), folder / str(version + 1))
        config = folder / "config.pbtxt"
        config.write_text(config.read_text().replace(f"versions: [ {version} ]", f"versions: [ {version + 1} ]"))
    return version + 1


def change_instances(server: RunningServer, model: str, instances: dict[int, int]) -> None:
    repository = server.state.repository
    front = LiveFront(server.control, server.state.metrics, repository, partitioned_model(repository, model))
    allocate(front, instances, lambda line: None)


def metric(server: RunningServer, family: str, model: str, **labels: str) -> float:
    """Return the sum of a model's published series of a family."""
    with urllib.request.urlopen(f"http://{server.state.metrics}/metrics", timeout=10) as response:
        return published(response.read().decode(), family, model=model, **labels)


def used(server: RunningServer, model: str) -> dict[int, int]:
    """Return the number of instances that a model's newest served version uses, by length."""
    versions = used_instances(server.state.metrics, model)
    return versions[max(versions)]


def stub_pids(server: RunningServer, model: str) -> set[int]:
    return {stub.pid for stub in live_stubs(server.state.server_pid) if stub.model == model}


def log_text(server: RunningServer) -> str:
    assert server.state.log is not None
    return server.state.log.read_text(errors="replace")


class Traffic:
    """Sends queries of all lengths, eight at a time, while a block runs; counts them and collects failures."""

    def __init__(self, server: RunningServer, model: str) -> None:
        self.sent = 0
        self.failures: list[str] = []
        self._server, self._model = server, model
        self._done = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Traffic:
        self._thread.start()
        assert until(lambda: self.sent > 50)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    async def _run(self) -> None:
        texts = make_texts(64, seed=9)
        async with AsyncClient(self._server.grpc, timeout_s=30) as client:

            async def one() -> None:
                while not self._done.is_set():
                    self.sent += 1
                    try:
                        await client.classify(self._model, texts[self.sent % len(texts)], outputs=["label"])
                    except RequestError as error:
                        self.failures.append(f"{type(error).__name__}: {error}")

            await asyncio.gather(*(one() for _ in range(8)))


class TestAnswers:
    def test_equal_the_source_model_and_come_from_the_shortest_runtime_that_fits(
        self, url: str, reference: Callable[[str], np.ndarray[Any, Any]]
    ) -> None:
        with Client(url) as client:
            for words in (1, 14, 15, 30, 31, 62):
                text = " ".join(["good", "song", "bad", "weather"] * 16).split()[:words]
                answer, expected = client.classify("tiny", " ".join(text)), reference(" ".join(text))
                np.testing.assert_allclose(answer.logits, expected, atol=1e-3)  # type: ignore[arg-type]
                assert answer.label == ("negative", "neutral", "positive")[expected.argmax()]
                assert answer.max_length == next(n for n in LENGTHS if n >= words + 2)
                assert len(answer.other["attention_received"]) == words + 2

    def test_rows_of_a_request_are_dispatched_one_by_one(self, url: str) -> None:
        texts = make_texts(40, seed=5)
        with Client(url) as client:
            together = client.classify_many("tiny", texts)
            alone = [client.classify("tiny", text) for text in texts]
        np.testing.assert_allclose([a.logits for a in together], [a.logits for a in alone], atol=1e-4)  # type: ignore[arg-type]

    def test_a_runtime_model_can_be_queried_directly(self, server: RunningServer) -> None:
        ids = np.ones((1, 32), np.int64)
        with Client(server.grpc) as client:
            outputs = client.infer(
                "tiny_len32", {"input_ids": ids, "attention_mask": ids, "token_type_ids": np.zeros_like(ids)}
            )
        assert outputs["logits"].shape == (1, 3)

    def test_deadlines(self, url: str) -> None:
        with Client(url) as client:
            with pytest.raises(Unavailable, match=r"deadline of 0\.001 ms"):
                client.classify("tiny", "good", latency_ms=0.001)
            assert client.classify("tiny", "good", latency_ms=20_000).label


class TestStreams:
    """Two models share the server; each is dispatched by its own SLO."""

    def test_queries_are_demoted_by_the_slo_of_their_own_model(self, server: RunningServer) -> None:
        short = ["good song"] * 24
        with Client(server.grpc) as client:
            calm = [answer.max_length for answer in client.classify_many("tiny", short)]
            hasty = [answer.max_length for answer in client.classify_many("hasty", short)]
        # 2 s suffice for far more than 24 of them: none is demoted.
        assert set(calm) == {16}
        # One query fills an instance: the first three use one each, the others find all congested and use the first.
        assert {n: hasty.count(n) for n in LENGTHS} == {16: 22, 32: 1, 64: 1}
        assert until(lambda: metric(server, "tidal_arlo_demoted_queries_total", "hasty") >= 2)
        assert metric(server, "tidal_arlo_demoted_queries_total", "tiny") == 0

    def test_both_answer_under_load(self, server: RunningServer) -> None:
        with Traffic(server, "tiny") as one, Traffic(server, "hasty") as other:
            assert until(lambda: min(one.sent, other.sent) > 200)
        assert one.failures == other.failures == []


class TestAllocation:
    def test_it_changes_under_load_without_a_failure(self, server: RunningServer) -> None:
        middle = " ".join(["good"] * 20)
        with Client(server.grpc) as client, Traffic(server, "tiny") as traffic:
            assert client.classify("tiny", middle).max_length == 32
            change_instances(server, "tiny", {16: 2, 32: 0, 64: 1})
            assert used(server, "tiny") == {16: 2, 32: 0, 64: 1}
            assert client.classify("tiny", middle).max_length == 64
            change_instances(server, "tiny", {16: 1, 32: 1, 64: 1})
            assert until(lambda: used(server, "tiny") == {16: 1, 32: 1, 64: 1})
            assert until(lambda: client.classify("tiny", middle).max_length == 32)
        assert traffic.sent > 100
        assert traffic.failures == []

    def test_a_broken_file_is_logged_once_and_changes_nothing(self, server: RunningServer, repository: Path) -> None:
        file = repository / "hasty" / ALLOCATION_FILE
        with Client(server.grpc) as client:
            for broken in ("{", '{"instances": {"16": 1, "64": 0}}', '{"instances": {"16": 1, "64": 1}}'):
                counted = log_text(server).count("the allocation stays at [1, 1, 1]")
                file.write_text(broken)
                assert until(lambda n=counted: log_text(server).count("the allocation stays at [1, 1, 1]") > n)  # type: ignore[misc]
                assert client.classify("hasty", "good").label
            time.sleep(0.6)  # two more polls of the file
            assert log_text(server).count("the allocation stays at [1, 1, 1]") == counted + 1
            file.unlink()
            assert used(server, "hasty") == {16: 1, 32: 1, 64: 1}

    def test_a_publish_under_load_fails_no_query(self, server: RunningServer, repository: Path) -> None:
        with Traffic(server, "tiny") as traffic:
            version = publish_again(repository, "tiny")
            reload(server.control, repository, "tiny")
        ready = {row.name: row.version for row in server.control.index() if row.state == "READY"}
        assert {ready[name] for name in ("tiny", *(runtime_model("tiny", n) for n in LENGTHS))} == {version}
        assert traffic.failures == []


class TestFailures:
    # tritonserver aborts when the killed process held a lock in the memory that they share: 6 of 67 kills under load.
    @pytest.mark.flaky(reruns=2)
    def test_a_killed_instance_costs_no_query(self, own_server: RunningServer) -> None:
        """The front requeues the query that the instance ran; `tidal serve` restarts the instance."""
        for length in (LENGTHS[0], LENGTHS[-1]):
            model = runtime_model("tiny", length)
            # Instances of the previous version may still be ending.
            assert until(lambda m=model: len(stub_pids(own_server, m)) == 1)  # type: ignore[misc]
            (before,) = stub_pids(own_server, model)
            with Traffic(own_server, "tiny") as traffic:
                os.kill(before, signal.SIGKILL)
                assert until(lambda m=model, b=before: bool(stub_pids(own_server, m) - {b}))  # type: ignore[misc]
                sent = traffic.sent
                assert until(lambda t=traffic, s=sent: t.sent > s + 200)  # type: ignore[misc]
            assert traffic.failures == []
            with Client(own_server.grpc) as client:
                text = " ".join(["good"] * (length - 2))
                assert until(lambda c=client, t=text, n=length: c.classify("tiny", t).max_length == n)  # type: ignore[misc]
        assert metric(own_server, "tidal_arlo_put_back_queries_total", "tiny") >= 1

    def test_a_bad_slo_is_refused_at_load(self, server: RunningServer, repository: Path) -> None:
        shutil.rmtree(repository / "bad", ignore_errors=True)
        shutil.copytree(repository / "hasty", repository / "bad")
        config = repository / "bad" / "config.pbtxt"
        text = re.sub(r"parameters .*\n", "", config.read_text()).replace("hasty", "bad")
        config.write_text(text + parameter("slo_ms", "soon"))
        with pytest.raises(Internal, match=r"parameter 'slo_ms' in config.pbtxt is 'soon'.*up to 3,600,000"):
            server.control.load("bad", None)
        with Client(server.grpc) as client:
            assert client.infer("tiny", text_rows(b"good"))["logits"].shape == (1, 3)

    def test_without_its_instance_models_it_does_not_load(self, server: RunningServer, repository: Path) -> None:
        shutil.rmtree(repository / "bad", ignore_errors=True)
        shutil.copytree(repository / "hasty", repository / "bad")
        config = repository / "bad" / "config.pbtxt"
        config.write_text(config.read_text().replace("hasty", "bad"))
        with pytest.raises(Internal, match="bad_len16"):
            server.control.load("bad", None)


def test_work_in_flight_is_answered_when_the_server_ends(repository: Path, tmp_path: Path) -> None:
    """The runtime models are unreachable from then on: queries that have not run fail at once."""
    for name in ("tiny", *(runtime_model("tiny", length) for length in LENGTHS)):
        shutil.copytree(repository / name, tmp_path / name)
    texts = make_texts(64, seed=4)
    with running_server(tmp_path) as server:
        with Client(f"grpc://{server.grpc}") as client, ThreadPoolExecutor(24) as pool:
            client.classify("tiny", "good")
            futures = [pool.submit(client.classify_many, "tiny", texts) for _ in range(24)]
            time.sleep(0.05)
            os.kill(server.pid, signal.SIGTERM)
            for future in futures:
                try:
                    assert len(future.result(timeout=60)) == 64
                except RequestError as error:
                    assert isinstance(error, Unavailable), error
        psutil.Process(server.pid).wait(60)
        assert "Signal (11)" not in server.log_text()
    assert server.processes() == []
