"""Calls of another node's server: answers, errors, and a node that refuses, hangs or returns.

The node is a gRPC server of this process, which fails on demand; `test_cluster_served` has real ones.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from testing.waiting import until
from tidal.arlo.remote_server import RemoteServer
from tidal.errors import Internal, InvalidArgument, TidalError, Unavailable
from tidal.repository.cluster_table import RemoteNode
from tidal.requests import Array
from tidal.service import ModelUnavailable


class Node(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers with the sum of the ids, or fails."""

    def __init__(self, port: int = 0) -> None:
        self.failure: tuple[grpc.StatusCode, str] | None = None
        self.go = threading.Event()
        self.go.set()
        self.requests: list[service_pb2.ModelInferRequest] = []
        self._server = grpc.server(ThreadPoolExecutor(8))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    def stop(self) -> None:
        self.go.set()
        self._server.stop(0).wait()

    def ServerLive(self, request: object, context: object) -> service_pb2.ServerLiveResponse:
        self.go.wait(10)
        return service_pb2.ServerLiveResponse(live=True)

    def ModelInfer(
        self, request: service_pb2.ModelInferRequest, context: grpc.ServicerContext
    ) -> service_pb2.ModelInferResponse:
        self.requests.append(request)
        self.go.wait(10)
        if self.failure is not None:
            context.abort(*self.failure)
        ids = np.frombuffer(request.raw_input_contents[0], np.int64)
        answer = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1")
        answer.outputs.add(name="logits", datatype="FP32", shape=[1, 1])
        answer.raw_output_contents.append(np.array([ids.sum()], np.float32).tobytes())
        return answer


@pytest.fixture
def node() -> Iterator[Node]:
    running = Node()
    yield running
    running.stop()


@pytest.fixture
def server(node: Node) -> Iterator[RemoteServer]:
    known = RemoteNode(grpc=f"127.0.0.1:{node.port}", instances={16: 1})
    opened = RemoteServer("b", known, logging.getLogger("test"))
    yield opened
    opened.close()


def call(server: RemoteServer, *, timeout_s: float = 10, latency_ms: float | None = None) -> dict[str, Array]:
    ids = np.arange(4)[None]
    return server.call("m_len16", {"input_ids": ids}, ["logits"], version=3, timeout_s=timeout_s, latency_ms=latency_ms)


def test_an_answer(server: RemoteServer, node: Node) -> None:
    assert call(server, latency_ms=5000)["logits"].tolist() == [[6.0]]
    (request,) = node.requests
    assert (request.model_name, request.model_version) == ("m_len16", "3")
    assert request.parameters["latency_ms"].string_param == "5000.000"
    assert request.parameters["tidal_coded_errors"].bool_param


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "[INVALID_ARG] too long", InvalidArgument),
        (grpc.StatusCode.INTERNAL, "[INTERNAL] the engine failed", Internal),
        (grpc.StatusCode.UNAVAILABLE, "[UNAVAILABLE] the model stops", Unavailable),
        (grpc.StatusCode.INTERNAL, "odd", Internal),
        (grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'm' version 3 is not at ready state", ModelUnavailable),
        (grpc.StatusCode.UNAVAILABLE, "Request for unknown model: 'm_len16' is not found", ModelUnavailable),
        (grpc.StatusCode.UNAVAILABLE, "Server not ready", ModelUnavailable),
        (grpc.StatusCode.INTERNAL, "Stub process 'm_len16_0_0' is not healthy.", ModelUnavailable),
    ],
)
def test_errors_of_a_node_that_answers(
    server: RemoteServer, node: Node, status: grpc.StatusCode, message: str, expected: type[TidalError]
) -> None:
    node.failure = status, message
    with pytest.raises(expected) as raised:
        call(server)
    if isinstance(raised.value, ModelUnavailable):
        assert raised.value.died == message.startswith("Stub")
    assert server.reachable


def test_a_node_that_is_gone_gets_no_calls_until_it_answers(server: RemoteServer, node: Node) -> None:
    call(server)
    node.stop()
    with pytest.raises(ModelUnavailable, match="node 'b' is unreachable") as raised:
        call(server)
    assert not raised.value.died
    assert not server.reachable
    again = Node(node.port)
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
    node.failure = grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"
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


def test_calls_after_the_connection_was_closed(server: RemoteServer) -> None:
    server.close()
    with pytest.raises(ModelUnavailable):
        call(server)
