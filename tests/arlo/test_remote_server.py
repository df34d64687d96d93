"""Calls of another node's server: answers, errors, and a node that refuses, hangs or returns.

The node is a gRPC or an HTTP server of this process, which fails on demand; `test_cluster_served` has real ones.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from testing.listeners import answering, listening
from testing.waiting import until
from tests.arlo.nodes import GrpcServer, HttpServer, Node, Running
from tidal.arlo.remote_server import RemoteCall, RemoteRun, RemoteServer
from tidal.errors import Internal, InvalidArgument, TidalError, Unavailable
from tidal.repository.cluster_table import RemoteNode
from tidal.requests import Array
from tidal.service import ModelUnavailable


@pytest.fixture(params=[GrpcServer, HttpServer], ids=["grpc", "http"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    started = request.param()
    yield started
    started.stop()


@pytest.fixture
def node(running: Running) -> Node:
    return running.node


@pytest.fixture
def server(running: Running) -> Iterator[RemoteServer]:
    opened = RemoteServer("b", running.address(), logging.getLogger("test"))
    yield opened
    opened.close()


def asked(timeout_s: float = 10, latency_ms: float | None = None) -> RemoteCall:
    return RemoteCall("m_len16", {"input_ids": np.arange(4)[None]}, ["logits"], 3, timeout_s, latency_ms)


def call(server: RemoteServer, *, timeout_s: float = 10, latency_ms: float | None = None) -> dict[str, Array]:
    return server.call(asked(timeout_s, latency_ms))


def test_an_answer(server: RemoteServer, node: Node) -> None:
    assert call(server, latency_ms=5000)["logits"].tolist() == [[6.0]]
    ((model, version, parameters),) = node.requests
    assert (model, version) == ("m_len16", "3")
    assert parameters == {"latency_ms": "5000.000", "tidal_coded_errors": True, "tidal_from_model": True}


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        ("INVALID_ARGUMENT", "[INVALID_ARG] too long", InvalidArgument),
        ("INTERNAL", "[INTERNAL] the engine failed", Internal),
        ("UNAVAILABLE", "[UNAVAILABLE] the model stops", Unavailable),
        ("INTERNAL", "odd", Internal),
        ("NOT_FOUND", "Request for unknown model: 'm' version 3 is not at ready state", ModelUnavailable),
        ("UNAVAILABLE", "Request for unknown model: 'm_len16' is not found", ModelUnavailable),
        ("UNAVAILABLE", "Server not ready", ModelUnavailable),
        ("INTERNAL", "Stub process 'm_len16_0_0' is not healthy.", ModelUnavailable),
    ],
)
def test_errors_of_a_node_that_answers(
    server: RemoteServer, node: Node, status: str, message: str, expected: type[TidalError]
) -> None:
    node.failure = status, message
    with pytest.raises(expected) as raised:
        call(server)
    if isinstance(raised.value, ModelUnavailable):
        assert raised.value.died == message.startswith("Stub")
    assert server.reachable


def test_a_node_that_is_unavailable_gets_no_calls_until_it_answers(server: RemoteServer, node: Node) -> None:
    node.failure = "UNAVAILABLE", "ending"
    with pytest.raises(ModelUnavailable, match="node 'b' is unreachable"):
        call(server)
    assert not server.reachable
    assert until(lambda: server.reachable)


def test_a_node_that_is_gone_gets_no_calls_until_it_answers(server: RemoteServer, running: Running) -> None:
    call(server)
    running.stop()
    with pytest.raises(ModelUnavailable, match="node 'b' is unreachable") as raised:
        call(server)
    assert not raised.value.died
    assert not server.reachable
    again = type(running)(running.port)  # type: ignore[call-arg]
    try:
        assert until(lambda: server.reachable)
        assert call(server)["logits"].tolist() == [[6.0]]
    finally:
        again.stop()


def test_a_node_that_hangs_is_left_after_the_timeout(server: RemoteServer, node: Node) -> None:
    node.go.clear()
    with pytest.raises(ModelUnavailable, match="node 'b' is unreachable"):
        call(server, timeout_s=0.3)
    assert not server.reachable
    for _ in range(200):
        with pytest.raises(ModelUnavailable):
            call(server)
    assert len(node.requests) == 1  # no other call was sent
    node.go.set()
    assert until(lambda: server.reachable)


def test_a_deadline_that_passes_on_a_node_that_answers_probes_does_not_exclude_it(
    server: RemoteServer, node: Node
) -> None:
    node.delay_s = 0.2
    for _ in range(3):
        with pytest.raises(ModelUnavailable, match="before the query's deadline"):
            call(server, latency_ms=50)
        assert server.reachable


def test_deadlines_that_pass_on_a_node_that_hangs_exclude_it(server: RemoteServer, node: Node) -> None:
    """Otherwise queries with short deadlines would be sent to it, and missed, for ever."""
    node.go.clear()
    with pytest.raises(ModelUnavailable, match="before the query's deadline"):
        call(server, latency_ms=50)
    assert until(lambda: not server.reachable)
    node.go.set()
    assert until(lambda: server.reachable)


def test_a_call_that_runs_while_the_connection_is_closed(server: RemoteServer, node: Node) -> None:
    node.go.clear()
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call, server)
        assert until(lambda: bool(node.requests))
        server.close()
        with pytest.raises(ModelUnavailable, match="node 'b' was disconnected"):
            calling.result()


def test_calls_after_the_connection_was_closed(server: RemoteServer) -> None:
    server.close()
    with pytest.raises(ModelUnavailable, match="node 'b' was disconnected"):
        call(server)


def test_a_node_is_called_again_after_a_lack_of_threads(
    server: RemoteServer, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("probe-"):
            raise RuntimeError("can't start new thread")
        begin(thread)

    node.failure = "UNAVAILABLE", "ending"
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(ModelUnavailable, match="node 'b' is unreachable"):
            call(server)
    node.failure = None
    assert call(server)["logits"].tolist() == [[6.0]]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nNot Found", "Not Found"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", "HTTP status 502"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n#", "the response is not one of Triton"),
    ],
)
def test_a_server_that_is_no_triton_gets_no_calls(answer: bytes, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with listening(answering(answer)) as listener:
        address = RemoteNode(grpc="h:1", http=listener.url.removeprefix("http://"), instances={16: 1})
        server = RemoteServer("b", address, logging.getLogger("test"))
        with pytest.raises(ModelUnavailable, match="node 'b' is unreachable"):
            call(server)
        time.sleep(0.6)  # probes
        assert not server.reachable
        server.close()
    assert f"is unreachable: {reason}" in caplog.text


def test_a_host_name_that_cannot_be_one_is_unreachable() -> None:
    address = RemoteNode.model_construct(grpc="h:1", http="b..c:1", instances={16: 1}, tls=None)
    server = RemoteServer("b", address, logging.getLogger("test"))
    with pytest.raises(ModelUnavailable, match="node 'b' is unreachable"):
        call(server)
    server.close()


def test_a_node_that_ends_is_not_found_again_over_an_open_connection() -> None:
    """As Triton does, it answers over connections that are open, and accepts no further ones."""
    running = HttpServer()
    server = RemoteServer("b", running.address(), logging.getLogger("test"))
    call(server)
    running.accepts, running.node.delay_s = False, 0.2
    with ThreadPoolExecutor(2) as pool:
        outcomes = [pool.submit(call, server) for _ in range(2)]
        assert sum(each.exception() is None for each in outcomes) == 1
    time.sleep(0.8)  # probes
    assert not server.reachable
    running.accepts = True
    assert until(lambda: server.reachable)
    server.close()
    running.stop()


def test_idle_connections_to_a_node_that_is_lost_are_closed() -> None:
    """After a network was cut they may be dead, which shows only when a call over them has waited in vain."""
    running = HttpServer()
    server = RemoteServer("b", running.address(), logging.getLogger("test"))
    running.node.delay_s = 0.2
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(call, server) for _ in range(3)]:
            done.result()
    assert running.open == 3
    running.accepts = False  # no probes
    running.node.delay_s = 0.6
    with pytest.raises(ModelUnavailable, match="node 'b' is unreachable"):
        call(server, timeout_s=0.3)
    assert until(lambda: running.open == 0, 5)
    server.close()
    running.stop()


class TestStartedCalls:
    """Over HTTP, the thread that asks sends the request, and another one may wait for the answer."""

    @pytest.fixture
    def running(self) -> Iterator[HttpServer]:
        started = HttpServer()
        yield started
        started.stop()

    def start(self, server: RemoteServer, *, latency_ms: float | None = None) -> RemoteRun:
        run = server.start(asked(latency_ms=latency_ms))
        assert run is not None
        return run

    def test_nothing_is_sent_before_there_is_a_connection(self, server: RemoteServer, node: Node) -> None:
        assert server.start(asked()) is None
        assert node.requests == []

    def test_an_answer(self, server: RemoteServer, node: Node) -> None:
        call(server)
        for _ in range(3):
            run = self.start(server)
            assert run.wait(0.01) is None
            outputs = run.wait()
            assert outputs is not None
            assert outputs["logits"].tolist() == [[6.0]]
        assert len(node.requests) == 4

    def test_as_many_run_at_a_time_as_there_are_connections(self, server: RemoteServer, node: Node) -> None:
        with ThreadPoolExecutor(4) as pool:
            node.delay_s = 0.2
            for done in [pool.submit(call, server) for _ in range(4)]:
                done.result()
        node.delay_s = 0.0
        node.go.clear()
        runs = [self.start(server) for _ in range(4)]
        assert server.start(asked()) is None
        node.go.set()
        assert [run.wait() is not None for run in runs] == [True] * 4

    def test_large_requests_are_left_to_a_worker(self, server: RemoteServer, node: Node) -> None:
        call(server)
        large = replace(asked(), inputs={"input_ids": np.zeros((1, 5000), np.int64)})
        assert server.start(large) is None
        assert len(node.requests) == 1
        assert server.call(large)["logits"].tolist() == [[0.0]]

    def test_failures(self, server: RemoteServer, node: Node, running: HttpServer) -> None:
        call(server)
        node.failure = "INVALID_ARGUMENT", "[INVALID_ARG] too long"
        with pytest.raises(InvalidArgument, match="too long"):
            self.start(server).wait()
        node.failure = None
        node.go.clear()
        with pytest.raises(ModelUnavailable, match="before the query's deadline"):
            self.start(server, latency_ms=50).wait()
        node.go.set()
        call(server)
        run = self.start(server)
        running.stop()
        run.wait()
        with pytest.raises(ModelUnavailable, match="node 'b' is unreachable"):
            call(server)
        with pytest.raises(ModelUnavailable, match="node 'b' is unreachable"):
            self.start(server)

    def test_the_connection_is_closed_while_it_runs(self, server: RemoteServer, node: Node) -> None:
        call(server)
        node.go.clear()
        run = self.start(server)
        server.close()
        with pytest.raises(ModelUnavailable, match="node 'b' was disconnected"):
            run.wait()
