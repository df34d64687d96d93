"""Servers of other nodes in this process, over gRPC and HTTP, which fail on demand."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tidal.repository.cluster_table import RemoteNode
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
    """See `Running`.

    Attributes:
        accepts: Whether it keeps new connections open; else it closes them at once.
        open: Number of connections that it serves.
    """

    def __init__(self, port: int = 0) -> None:
        self.node = node = Node()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                server.open += 1

            def finish(self) -> None:
                server.open -= 1
                super().finish()

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

        self.accepts, self.open = True, 0
        self._connections = list[Any]()
        server = self

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def verify_request(self, request: Any, client_address: Any) -> bool:
                return server.accepts

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
