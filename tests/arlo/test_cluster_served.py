"""A partitioned model on two real servers: queries run on both, and the loss of one costs none."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.certificates import write_self_signed
from testing.metrics import published
from testing.network import cuttable
from testing.processes import tritonserver_of
from testing.serving import TIDAL, tidal_in_process
from testing.waiting import until
from tests.arlo.conftest import LENGTHS
from tests.arlo.support import Traffic, make_texts
from tidal.repository.allocation import make_allocation, write_allocation
from tidal.repository.cluster_table import (
    CLUSTER_FILE,
    ClusterTable,
    RemoteNode,
    read_cluster_table,
    write_cluster_table,
)
from tidal.server.allocate import LiveFront, allocate, partitioned_model
from tidal.server.child import RunningServer, tidal_serve
from tidal.server.local_http import open_url
from tidal.server.stubs import live_stubs
from tidal_client import Client, RequestError

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def nodes(partitioned: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningServer]]:
    """Node `a` has only the longest runtime; node `b` has all."""
    running: dict[str, RunningServer] = {}
    folder = tmp_path_factory.mktemp("nodes")
    for name, instances in (("a", {16: 0, 32: 0, 64: 1}), ("b", {16: 1, 32: 1, 64: 1})):
        shutil.copytree(partitioned, folder / name)
        write_allocation(folder / name / "tiny", make_allocation(instances))
    restarts = ("--exit-timeout", "1", "--server-restarts", "3")
    with tidal_serve(folder / "a", *restarts) as running["a"], tidal_serve(folder / "b", *restarts) as running["b"]:
        yield running


@pytest.fixture(autouse=True)
def connected(nodes: dict[str, RunningServer]) -> Iterator[None]:
    """Node `a` sends queries to `b` too; `b` is up."""
    assert until(lambda: ready(nodes["b"]), 60)
    outcome = cluster(nodes, "connect", "tiny", f"b={nodes['b'].state.grpc},http={nodes['b'].state.http}")
    assert outcome.returncode == 0, outcome.stderr
    assert until(lambda: remote(nodes["a"]) == 3)
    yield
    cluster(nodes, "disconnect", "tiny")
    assert until(lambda: remote(nodes["a"]) == 0)


def ready(server: RunningServer) -> bool:
    try:
        with Client(server.grpc, timeout_s=5) as client:
            return bool(client.classify("tiny", "good").label)
    except RequestError:
        return False


def cluster(nodes: dict[str, RunningServer], *words: str) -> Any:
    repository = str(nodes["a"].state.repository)
    return tidal_in_process("cluster", *words, "--repository", repository, environment=dict(os.environ))


def metrics_text(server: RunningServer) -> str:
    with open_url(f"http://{server.state.metrics}/metrics", 10) as response:
        return str(response.read().decode())


def remote(server: RunningServer) -> float:
    return published(metrics_text(server), "tidal_arlo_remote_instances", model="tiny")


def ran(server: RunningServer, length: int) -> float:
    """Queries that a server's instances of a runtime have run."""
    return published(metrics_text(server), "nv_inference_count", model=f"tiny_len{length}")


def classify_all(url: str, texts: Sequence[str]) -> list[Any]:
    with Client(url, timeout_s=60) as client:
        return list(client.classify_many("tiny", list(texts)))


@pytest.mark.parametrize("between", ["grpc", "http"])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_queries_run_on_both_nodes_with_the_same_answers(
    nodes: dict[str, RunningServer], protocol: str, between: str
) -> None:
    if between == "grpc":
        assert cluster(nodes, "connect", "tiny", f"b={nodes['b'].state.grpc}").returncode == 0
        time.sleep(0.5)  # the front reads it every 250 ms
    texts = make_texts(60, seed=3)
    alone = classify_all(nodes["b"].grpc, texts)
    before = {length: ran(nodes["b"], length) for length in LENGTHS}
    together = classify_all(getattr(nodes["a"], protocol), texts)
    np.testing.assert_allclose([a.logits for a in together], [a.logits for a in alone], atol=1e-4)
    assert {answer.max_length for answer in together} == set(LENGTHS)  # the shorter ones are on b alone
    assert all(ran(nodes["b"], length) > before[length] for length in LENGTHS)


def runs_again(server: RunningServer) -> bool:
    """Whether the shortest runtime of a server runs a query now."""
    ids = np.ones((1, 16), np.int64)
    try:
        with Client(server.grpc, timeout_s=5) as client:
            inputs = {"input_ids": ids, "attention_mask": ids, "token_type_ids": np.zeros_like(ids)}
            return "logits" in client.infer("tiny_len16", inputs)
    except RequestError:
        return False


def test_a_killed_server_costs_no_query_and_is_used_again(nodes: dict[str, RunningServer]) -> None:
    with Traffic(nodes["a"].grpc, "tiny") as load:
        tritonserver_of(nodes["b"]).kill()
        assert until(lambda: remote(nodes["a"]) == 0, 30)
        answered = load.answered
        assert until(lambda: load.answered > answered + 50, 60)
        # Its supervisor restarts it, on the same ports.
        assert until(lambda: remote(nodes["a"]) == 3, 90)
        before = ran(nodes["b"], 16)
        assert until(lambda: ran(nodes["b"], 16) > before, 60)
    assert load.failures == []


def test_a_killed_instance_of_another_node_costs_no_query(nodes: dict[str, RunningServer]) -> None:
    stubs = [stub for stub in live_stubs(tritonserver_of(nodes["b"]).pid) if stub.model == "tiny_len16"]
    with Traffic(nodes["a"].grpc, "tiny") as load:
        os.kill(stubs[0].pid, signal.SIGKILL)
        answered = load.answered
        assert until(lambda: load.answered > answered + 50, 60)
        assert until(lambda: runs_again(nodes["b"]), 90)
    assert load.failures == []


def test_a_frozen_server_costs_no_query(nodes: dict[str, RunningServer]) -> None:
    assert until(lambda: ready(nodes["b"]), 60)
    frozen = tritonserver_of(nodes["b"])
    with Traffic(nodes["a"].grpc, "tiny") as load:
        frozen.suspend()
        try:
            assert until(lambda: remote(nodes["a"]) == 0, 30)
            answered = load.answered
            assert until(lambda: load.answered > answered + 50, 60)
        finally:
            frozen.resume()
        assert until(lambda: remote(nodes["a"]) == 3, 60)
    assert load.failures == []


def test_a_cut_network_costs_no_query_at_either_node(nodes: dict[str, RunningServer]) -> None:
    """A proxy between the nodes drops everything and closes nothing, as a firewall does."""
    with cuttable(nodes["b"].state.http) as link:
        connected = cluster(nodes, "connect", "tiny", f"b={nodes['b'].state.grpc},http={link.address}")
        assert connected.returncode == 0
        assert until(lambda: remote(nodes["a"]) == 3)
        with Traffic(nodes["a"].grpc, "tiny") as here, Traffic(nodes["b"].grpc, "tiny") as there:
            before = ran(nodes["b"], 16)
            assert until(lambda: ran(nodes["b"], 16) > before, 60)
            link.cut()
            assert until(lambda: remote(nodes["a"]) == 0, 30)
            answered = here.answered, there.answered
            assert until(lambda: here.answered > answered[0] + 50 and there.answered > answered[1] + 50, 60)
            link.heal()
            assert until(lambda: remote(nodes["a"]) == 3, 60)
        assert (here.failures, there.failures) == ([], [])


def test_a_disconnected_node_gets_no_queries(nodes: dict[str, RunningServer]) -> None:
    with Traffic(nodes["a"].grpc, "tiny") as load:
        assert cluster(nodes, "disconnect", "tiny", "b").returncode == 0
        assert until(lambda: remote(nodes["a"]) == 0)
        counted = ran(nodes["b"], 16)
        answered = load.answered
        assert until(lambda: load.answered > answered + 50, 60)
        assert ran(nodes["b"], 16) == counted
    assert load.failures == []


def test_a_node_over_tls(nodes: dict[str, RunningServer], partitioned: Path, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificate, key = write_self_signed(tmp_path, "c", "IP:127.0.0.1")
    shutil.copytree(partitioned, tmp_path / "c")
    tls = (f"--grpc-server-cert={certificate}", f"--grpc-server-key={key}")
    with tidal_serve(tmp_path / "c", "--exit-timeout", "1", "--", "--grpc-use-ssl=true", *tls) as c:
        named = f"c={c.state.grpc}"
        refused = cluster(nodes, "connect", "tiny", named)
        assert (refused.returncode, "node 'c' does not answer" in refused.stderr) == (1, True)
        assert cluster(nodes, "connect", "tiny", named, "--ca", str(certificate)).returncode == 0
        assert until(lambda: remote(nodes["a"]) == 6)
        # Only c is left for the shorter runtimes.
        assert cluster(nodes, "disconnect", "tiny", "b").returncode == 0
        assert until(lambda: remote(nodes["a"]) == 3)
        # A longer runtime of its own answers a lone query sooner than c where the way there takes long.
        with ThreadPoolExecutor(8) as pool:
            assert until(lambda: 16 in pool.map(answering_runtime, [nodes["a"].grpc] * 16))
        states = [row["state"] for row in json.loads(cluster(nodes, "nodes", "tiny", "--json").stdout)]
        assert states == ["serves"]


def test_a_watched_node_is_followed(nodes: dict[str, RunningServer]) -> None:
    repository = nodes["a"].state.repository
    words = ["connect", "tiny", f"b={nodes['b'].state.grpc}", "--watch", "1", "--repository", str(repository)]
    watching = subprocess.Popen([*TIDAL, "cluster", *words], stderr=subprocess.PIPE, text=True)
    front = partitioned_model(nodes["b"].state.repository, "tiny")
    live = LiveFront(nodes["b"].control, nodes["b"].state.metrics, nodes["b"].state.repository, front)
    try:
        for instances in ({16: 2, 32: 0, 64: 1}, {16: 1, 32: 1, 64: 1}):
            allocate(live, instances, lambda line: None)
            assert until(lambda n=instances: read_cluster_table(repository / "tiny").nodes["b"].instances == n)  # type: ignore[misc]
    finally:
        watching.send_signal(signal.SIGTERM)
        _, errors = watching.communicate(timeout=60)
    assert (watching.returncode, errors) == (0, "")


def answering_runtime(url: str) -> int | None:
    """Classify a short text; return the max_length of the runtime that answered."""
    with Client(url) as client:
        return client.classify("tiny", "good").max_length


def in_flight(url: str, clients: int) -> None:
    """Classify short texts, one at a time by each client."""
    with ThreadPoolExecutor(clients) as pool:
        for done in [pool.submit(classify_each, url) for _ in range(clients)]:
            done.result()


def classify_each(url: str) -> None:
    with Client(url, timeout_s=60) as client:
        for _ in range(30):
            client.classify("tiny", "good")


def test_an_entrance_uses_the_instances_that_are_assigned_to_it_first(nodes: dict[str, RunningServer]) -> None:
    """Four nodes on two servers: `c`, on the server of `a`, is assigned to `a`; `b` and `d` are another entrance's."""
    repository, every = nodes["a"].state.repository, {16: 1, 32: 1, 64: 1}
    front = partitioned_model(repository, "tiny")
    live = LiveFront(nodes["a"].control, nodes["a"].state.metrics, repository, front)

    def count(name: str) -> float:
        return sum(ran(nodes[name], length) for length in LENGTHS)

    def connect(assigned: str) -> None:
        table = {
            name: RemoteNode(grpc=nodes[server].state.grpc, instances=every, rank=rank, assigned=name in assigned)
            for rank, (name, server) in enumerate((("c", "a"), ("b", "b"), ("d", "b")))
        }
        write_cluster_table(repository / "tiny", ClusterTable(nodes=table, share=0.5))
        time.sleep(1.0)  # the front reads it every 250 ms

    allocate(live, every, lambda line: None)
    try:
        connect("c")
        assert until(lambda: remote(nodes["a"]) == 9)
        here = count("a")
        in_flight(nodes["a"].grpc, 3)  # a third query waits for an own instance: others are expected to have 1.5
        assert until(lambda: count("a") == here + 90)
        there = count("b")
        in_flight(nodes["a"].grpc, 16)
        assert until(lambda: count("b") > there)
        # Without assignment an own query counts twice, and other instances as idle.
        connect("")
        there = count("b")
        in_flight(nodes["a"].grpc, 3)
        assert until(lambda: count("b") > there)
    finally:
        allocate(live, {16: 0, 32: 0, 64: 1}, lambda line: None)


class TestCommands:
    def test_nodes_are_listed_with_what_they_serve(self, nodes: dict[str, RunningServer]) -> None:
        (row,) = json.loads(cluster(nodes, "nodes", "tiny", "--json").stdout)
        assert row == {
            "node": "b",
            "grpc": nodes["b"].state.grpc,
            "http": nodes["b"].state.http,
            "instances": {"16": 1, "32": 1, "64": 1},
            "state": "serves",
        }
        assert nodes["b"].state.grpc in cluster(nodes, "nodes", "tiny").stdout

    @pytest.mark.parametrize(
        ("words", "code", "message"),
        [
            (["connect", "tiny", "b"], 2, "'b' is not a node; expected NODE=HOST:PORT"),
            (["connect", "tiny", "b=1"], 2, "'1' is not an address; expected host:port"),
            (["connect", "tiny", "b=h:1,http=2"], 2, "'2' is not an address; expected host:port"),
            (["connect", "tiny", "b=h:1,https=h:2"], 2, "expected NODE=HOST:PORT or NODE=HOST:PORT,http="),
            (["connect", "tiny", "b=h:1,http=h:2", "--ca", __file__], 2, "queries over HTTP have no TLS; leave out"),
            (["connect", "tiny", "b/c=h:1"], 2, "'b/c' is not a node name"),
            (["connect", "none", "b=h:1"], 2, "model 'none' has no published version"),
            (["connect", "tiny_len16", "b=h:1"], 2, "is a runtime of 'tiny'"),
            (["connect", "tiny", "c=127.0.0.1:9"], 1, "node 'c' does not answer at 127.0.0.1:9"),
            (["connect", "tiny", "b=h:1", "--key", "k.pem"], 2, "--certificate and --key are given together"),
            (["connect", "tiny", "b=h:1", "--ca", "none.pem"], 2, "none.pem is not a file"),
            (["disconnect", "tiny", "z"], 1, "node 'z' is not connected; connected: b"),
            (["nodes", "none"], 2, "model 'none' has no published version"),
        ],
    )
    def test_bad_input(self, nodes: dict[str, RunningServer], words: list[str], code: int, message: str) -> None:
        table = nodes["a"].state.repository / "tiny" / CLUSTER_FILE
        before = table.read_bytes()
        outcome = cluster(nodes, *words)
        assert (outcome.returncode, message in outcome.stderr) == (code, True), outcome.stderr
        assert table.read_bytes() == before

    def test_an_address_that_is_no_http_endpoint_is_refused(self, nodes: dict[str, RunningServer]) -> None:
        state = nodes["b"].state
        outcome = cluster(nodes, "connect", "tiny", f"c={state.grpc},http={state.metrics}")
        assert outcome.returncode == 1
        assert (
            f"node 'c' does not serve 'tiny_len16' over HTTP at {state.metrics}: the answer is not Triton's"
            in outcome.stderr
        )
        assert "http= is the address of its server's HTTP endpoint" in outcome.stderr

    def test_a_node_without_the_version_is_refused(self, nodes: dict[str, RunningServer]) -> None:
        folder = nodes["a"].state.repository
        shutil.copytree(folder / "tiny" / "1", folder / "tiny" / "7")
        try:
            outcome = cluster(nodes, "connect", "tiny", f"b={nodes['b'].state.grpc}")
        finally:
            shutil.rmtree(folder / "tiny" / "7")
        assert outcome.returncode == 1
        assert "does not serve version 7 of 'tiny': publish that version to it" in outcome.stderr
