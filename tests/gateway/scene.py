"""Scripted servers that speak Triton's gRPC protocol, and the gateway's code in front of them, in one event loop."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import httpx
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer, add_GRPCInferenceServiceServicer_to_server

from tidal_gateway.app import Outer, create_app
from tidal_gateway.settings import GatewaySettings
from tidal_gateway.upstream.calls import Outgoing

#: gRPC statuses that end a call: of a dead stub, a broken connection, a full queue, a server that stops.
DIED = (grpc.StatusCode.INTERNAL, "Stub process 'm_0_0' is not healthy.")
LOST = (grpc.StatusCode.UNAVAILABLE, "Socket closed")
BUSY = (grpc.StatusCode.UNAVAILABLE, "the request was refused: max_queue_size is 4")
STOPS = (grpc.StatusCode.UNAVAILABLE, "Server not ready")


def runs(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that is a coroutine."""

    @functools.wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        asyncio.run(test(*arguments, **options))

    return run


async def eventually(condition: Any, seconds: float = 20.0) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


class Servicer(GRPCInferenceServiceServicer):
    """A server that answers each request with its own name.

    Attributes:
        models: Names of the models that it serves.
        script: What the next requests meet instead: an event to wait for, or a gRPC status.
        received: Requests in the order of arrival.
        had: Models that it ever served.
        decoupled: Whether its models answer in parts.
        ready: Whether it says that it is live.
        checks: Number of times that it was asked.
    """

    def __init__(self, name: str, models: Iterable[str] = ("m",)) -> None:
        self.name, self.models = name, set(models)
        self.had, self.decoupled = set(models), False
        self.script: list[Any] = []
        self.received: list[messages.ModelInferRequest] = []
        self.ready, self.checks = True, 0

    async def ServerLive(self, request: Any, context: Any) -> Any:
        self.checks += 1
        return messages.ServerLiveResponse(live=self.ready)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        rows = [messages.ModelStatistics(name=name, version="1") for name in sorted(self.models)]
        return messages.ModelStatisticsResponse(model_stats=rows)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        tensor = messages.ModelMetadataResponse.TensorMetadata
        names = {"inputs": ["text_input", "text_pair", "stream", "messages"]}
        names["outputs"] = ["text_output", "embedding", "score", "label"]
        specs = {kind: [tensor(name=each, datatype="BYTES", shape=[1]) for each in own] for kind, own in names.items()}
        return messages.ModelMetadataResponse(name=request.name, versions=["1"], **specs)

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        policy = model_config_pb2.ModelTransactionPolicy(decoupled=self.decoupled)
        config = model_config_pb2.ModelConfig(name=request.name, model_transaction_policy=policy)
        return messages.ModelConfigResponse(config=config)

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        await self._meet(request, context)
        return messages.ModelInferResponse(model_name=self.name)

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        """Answer with the parts of the script's next list, else with one part: each is text, or met as in `script`."""
        async for request in requests:
            self.received.append(request)
            if (problem := self._problem(request.model_name)) is not None:
                yield messages.ModelStreamInferResponse(error_message=problem)
                return
            steps = self.script.pop(0) if self.script and isinstance(self.script[0], list) else [self.name]
            for number, step in enumerate(steps):
                if not isinstance(step, str):
                    await self._wait(step, context)
                    continue
                response = messages.ModelInferResponse(model_name=self.name)
                response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
                response.raw_output_contents.append(len(step).to_bytes(4, "little") + step.encode())
                response.parameters["triton_final_response"].bool_param = number == len(steps) - 1
                yield messages.ModelStreamInferResponse(infer_response=response)

    def _problem(self, model: str) -> str | None:
        """What Triton says of a model that it does not serve; None of one that it does."""
        self.had |= self.models
        if model in self.models:
            return None
        return f"Request for unknown model: '{model}' " + (
            "has no available versions" if model in self.had else "is not found"
        )

    async def _meet(self, request: Any, context: Any) -> None:
        self.received.append(request)
        if (problem := self._problem(request.model_name)) is not None:
            await context.abort(grpc.StatusCode.NOT_FOUND, problem)
        if self.script:
            await self._wait(self.script.pop(0), context)

    async def _wait(self, step: Any, context: Any) -> None:
        if isinstance(step, asyncio.Event):
            await step.wait()
        elif step is not None:
            await context.abort(*step)


class Supervisor:
    """The status endpoint of a `tidal serve`; `document` is what `GET /ready` answers."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {"state": "serving", "server_restarts": 0, "not_ready": {}, "restarts": {}}
        self.reads = 0
        self.address = ""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Answer until the block ends."""
        supervisor = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = supervisor.document if self.path == "/ready" else {"models": {}}
                supervisor.reads += self.path == "/ready"
                content = json.dumps(found).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class Scene:
    """A pool over scripted servers, and an HTTP client of the gateway's application.

    Args:
        count: Number of servers.
        models: Models that each of them serves.
        decoupled: Whether the models answer in parts.
        supervised: Whether each has a status endpoint.
        max_outstanding: Bound of the outstanding requests of a model.
        settings: Further settings of the gateway.
    """

    def __init__(
        self,
        count: int,
        *,
        models: Iterable[str] = ("m",),
        supervised: bool = False,
        decoupled: bool = False,
        max_outstanding: int = 100,
        **settings: Any,
    ) -> None:
        self.servicers = [Servicer(f"s{number}", models) for number in range(count)]
        for each in self.servicers:
            each.decoupled = decoupled
        self.supervisors = [Supervisor() for _ in range(count if supervised else 0)]
        self._settings = {"max_outstanding": max_outstanding, **settings}

    async def __aenter__(self) -> Scene:
        self._running = [each.running() for each in self.supervisors]
        for each in self._running:
            each.__enter__()
        self._servers: list[Any] = []
        self.ports: list[int] = []
        for number in range(len(self.servicers)):
            self.ports.append(0)
            self._servers.append(None)
            await self.start_server(number)
        status = [f",status={each.address}" for each in self.supervisors] or [""] * len(self.ports)
        addresses = [f"127.0.0.1:{port}{own}" for port, own in zip(self.ports, status, strict=True)]
        self.app: Outer = create_app(GatewaySettings(server=tuple(addresses), **self._settings))
        self.pool = self.app.gateway.pool
        await self.pool.start()
        transport = httpx.ASGITransport(app=self.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=30)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        await self.pool.close()
        for number in range(len(self._servers)):
            await self.stop_server(number)
        for each in self._running:
            each.__exit__(None, None, None)

    async def start_server(self, number: int) -> None:
        """Start a server, on the port that it had before."""
        server = grpc.aio.server()
        add_GRPCInferenceServiceServicer_to_server(self.servicers[number], server)
        self.ports[number] = server.add_insecure_port(f"127.0.0.1:{self.ports[number]}")
        await server.start()
        self._servers[number] = server

    async def stop_server(self, number: int) -> None:
        """End a server as if it was killed."""
        if self._servers[number] is not None:
            await self._servers[number].stop(0)
            self._servers[number] = None

    def sent(self) -> list[int]:
        """Number of requests that each server received."""
        return [len(each.received) for each in self.servicers]

    async def infer(self, limit_s: float = 10.0, model: str = "m", affinity: str = "", **parameters: float) -> str:
        """Send a request, and return the name of the server that answered."""
        message = messages.ModelInferRequest(model_name=model)
        for name, value in parameters.items():
            message.parameters[name].double_param = value
        response = await self.pool.infer(Outgoing(message, time.monotonic() + limit_s, affinity))
        return str(response.model_name)
