"""Calls of another node's server: answers, errors, and a node that refuses, hangs or returns.

The node is a gRPC or an HTTP server of this process, which fails on demand; `test_cluster_served` has real ones.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

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
from tidal_client.transports.http_messages import JSON_LENGTH

# Statuses of HTTP by the code of gRPC, as Triton has them.
_STATUSES = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "INTERNAL": 500, "UNAVAILABLE": 503}


class Node:
    """How a node answers: with the sum of the ids, late, not at all, or with an error.

    Attributes:
        failure: Status and message of the error; None for an answer.
        delay_s: Time that a query takes, in seconds.
        go: Not set while the node answers nothing.
        requests: Model, version and parameters of each query.
    """

    def __init__(self) -> None:
        self.failure: tuple[str, str] | None = None
        self.delay_s = 0.0
        self.go = threading.Event()
        self.go.set()
        self.requests: list[tuple[str, str, dict[str, object]]] = []

    def wait(self) -> None:
        self.go.wait(10)
        time.sleep(self.delay_s)


class Running(Protocol):
    """A server of a node."""

    node: Node
    port: int

    def address(self) -> RemoteNode: ...
    def stop(self) -> None: ...


class GrpcServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """See `Running`."""

    def __init__(self, port: int = 0) -> None:
        self.node = Node()
        self._server = grpc.server(ThreadPoolExecutor(8))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    def address(self) -> RemoteNode:
        return RemoteNode(grpc=f"127.0.0.1:{self.port}", instances={16: 1})

    def stop(self) -> None:
        self.node.go.set()
        self._server.stop(0).wait()

    def ServerLive(self, request: object, context: object) -> service_pb2.ServerLiveResponse:
        self.node.go.wait(10)
        return service_pb2.ServerLiveResponse(live=True)

    def ModelInfer(
        self, request: service_pb2.ModelInferRequest, context: grpc.ServicerContext
    ) -> service_pb2.ModelInferResponse:
        parameters = {
            name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in request.parameters.items()
        }
        self.node.requests.append((request.model_name, request.model_version, parameters))
        self.node.wait()
        if self.node.failure is not None:
            status, message = self.node.failure
            context.abort(grpc.StatusCode[status], message)
        ids = np.frombuffer(request.raw_input_contents[0], np.int64)
        answer = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1")
        answer.outputs.add(name="logits", datatype="FP32", shape=[1, 1])
        answer.raw_output_contents.append(np.array([ids.sum()], np.float32).tobytes())
        return answer


class HttpServer:
    """See `Running`."""

    def __init__(self, port: int = 0) -> None:
        self.node = node = Node()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                node.go.wait(10)
                self.answer(200 if self.path == "/v2/health/live" else 404)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                split = int(self.headers[JSON_LENGTH])
                _, _, _, model, _, version, _ = self.path.split("/")
                node.requests.append((model, version, json.loads(body[:split])["parameters"]))
                node.wait()
                if node.failure is not None:
                    status, message = node.failure
                    self.answer(_STATUSES[status], json.dumps({"error": message}).encode())
                    return
                content = np.array([np.frombuffer(body[split:], np.int64).sum()], np.float32).tobytes()
                output = {"name": "logits", "datatype": "FP32", "shape": [1, 1]}
                head = json.dumps({"outputs": [output | {"parameters": {"binary_data_size": len(content)}}]}).encode()
                self.answer(200, head + content, (JSON_LENGTH, str(len(head))))

            def answer(self, status: int, body: bytes = b"", *fields: tuple[str, str]) -> None:
                self.send_response(status)
                for name, value in (("Content-Length", str(len(body))), *fields):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._connections = list[Any]()
        server = self

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def process_request(self, request: Any, client_address: Any) -> None:
                server._connections.append(request)
                super().process_request(request, client_address)

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def address(self) -> RemoteNode:
        return RemoteNode(grpc="127.0.0.1:9", http=f"127.0.0.1:{self.port}", instances={16: 1})

    def stop(self) -> None:
        self.node.go.set()
        self._server.shutdown()
        self._server.server_close()
        for connection in self._connections:
            self._server.shutdown_request(connection)


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


def call(server: RemoteServer, *, timeout_s: float = 10, latency_ms: float | None = None) -> dict[str, Array]:
    ids = np.arange(4)[None]
    return server.call("m_len16", {"input_ids": ids}, ["logits"], version=3, timeout_s=timeout_s, latency_ms=latency_ms)


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
