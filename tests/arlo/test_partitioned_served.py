"""A partitioned model under `tidal serve`: answers, and new allocations, new versions and crashes under load."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.metrics import published
from testing.waiting import until
from tests.arlo.conftest import MAX_LENGTH
from tests.arlo.support import Traffic, make_texts
from tidal.errors import Internal
from tidal.repository.allocation import ALLOCATION_FILE
from tidal.repository.names import runtime_model
from tidal.server.allocate import LiveFront, allocate, partitioned_model
from tidal.server.child import RunningServer, tidal_serve
from tidal.server.gauges import used_instances
from tidal.server.stubs import live_stubs
from tidal_client import Client, Unavailable

pytestmark = pytest.mark.server

LENGTHS = (16, 32, MAX_LENGTH)


@pytest.fixture(scope="module")
def repository(partitioned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny`, and two copies with Algorithm 1: `calm`, and `hasty` whose SLO is so short that one query fills an
    instance."""
    folder = shutil.copytree(partitioned, tmp_path_factory.mktemp("served") / "models")
    copy_partitioned(folder, "tiny", "calm", slo_ms=2000)
    copy_partitioned(folder, "tiny", "hasty", slo_ms=0.001)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    with tidal_serve(repository, "--exit-timeout", "1") as running:
        yield running


@pytest.fixture
def own_server(partitioned: Path, tmp_path: Path) -> Iterator[RunningServer]:
    """A server with `tiny` for one test, which may take it down."""
    shutil.copytree(partitioned, tmp_path / "models")
    # tritonserver counts the last query of a killed instance as in flight, so its shutdown takes all of this time.
    with tidal_serve(tmp_path / "models", "--exit-timeout", "1") as running:
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
    """Copy a partitioned model under another name, with Algorithm 1 and another SLO."""
    for folder in (name, *(runtime_model(name, length) for length in LENGTHS)):
        target = repository / folder.replace(name, copy, 1)
        shutil.copytree(repository / folder, target)
        config = target / "config.pbtxt"
        text = config.read_text().replace(f'name: "{name}', f'name: "{copy}')
        text = re.sub(r'(key: "slo_ms" value: \{ string_value: ")[^"]*', rf"\g<1>{slo_ms}", text)
        rule = 'parameters { key: "dispatch" value: { string_value: "congestion" } }\n' if folder == name else ""
        config.write_text(text + rule)
        for manifest in target.glob("*/manifest.json"):
            manifest.write_text(manifest.read_text().replace(f'"{name}"', f'"{copy}"'))


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
    """Models share the server; each is dispatched by its own rule and SLO."""

    def test_queries_are_demoted_by_the_rule_and_slo_of_their_own_model(self, server: RunningServer) -> None:
        short = ["good song"] * 24
        with Client(server.grpc) as client:
            first = [answer.max_length for answer in client.classify_many("tiny", short)]
            calm = [answer.max_length for answer in client.classify_many("calm", short)]
            hasty = [answer.max_length for answer in client.classify_many("hasty", short)]
        # Each is answered by the instance that is expected to be the first, and all idle ones are used.
        assert set(first) == set(LENGTHS)
        # 2 s suffice for far more than 24 of them: Algorithm 1 demotes none.
        assert set(calm) == {16}
        # One query fills an instance: the first three use one each, the others find all congested and use the first.
        assert {n: hasty.count(n) for n in LENGTHS} == {16: 22, 32: 1, 64: 1}
        assert until(lambda: metric(server, "tidal_arlo_demoted_queries_total", "hasty") >= 2)
        assert metric(server, "tidal_arlo_demoted_queries_total", "calm") == 0
        assert until(lambda: metric(server, "tidal_arlo_demoted_queries_total", "tiny") >= 2)

    def test_both_answer_under_load(self, server: RunningServer) -> None:
        with Traffic(server.grpc, "tiny") as one, Traffic(server.grpc, "hasty") as other:
            assert until(lambda: min(one.sent, other.sent) > 200)
        assert one.failures == other.failures == []


class TestAllocation:
    def test_it_changes_under_load_without_a_failure(self, server: RunningServer) -> None:
        middle = " ".join(["good"] * 20)
        with Client(server.grpc) as client, Traffic(server.grpc, "tiny") as traffic:
            # Beside the traffic the longest runtime may answer sooner.
            assert until(lambda: client.classify("tiny", middle).max_length == 32)
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
            with Traffic(own_server.grpc, "tiny") as traffic:
                os.kill(before, signal.SIGKILL)
                assert until(lambda m=model, b=before: bool(stub_pids(own_server, m) - {b}))  # type: ignore[misc]
                sent = traffic.sent
                assert until(lambda t=traffic, s=sent: t.sent > s + 200)  # type: ignore[misc]
            assert traffic.failures == []
            with Client(own_server.grpc) as client:
                text = " ".join(["good"] * (length - 2))
                assert until(lambda c=client, t=text, n=length: c.classify("tiny", t).max_length == n)  # type: ignore[misc]
        assert metric(own_server, "tidal_arlo_put_back_queries_total", "tiny") >= 1

    def test_without_its_instance_models_it_does_not_load(self, server: RunningServer, repository: Path) -> None:
        shutil.rmtree(repository / "bad", ignore_errors=True)
        shutil.copytree(repository / "hasty", repository / "bad")
        config = repository / "bad" / "config.pbtxt"
        config.write_text(config.read_text().replace("hasty", "bad"))
        with pytest.raises(Internal, match="bad_len16"):
            server.control.load("bad", None)
