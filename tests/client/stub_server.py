"""`python -m tests.client.stub_server NAME HTTP_PORT GRPC_PORT ROWS LOG`: a cheap server with Triton's protocols.

Its answers have its name as `label`. The text of a request's first row may be `hold NAME`, which that server logs and
never answers, or in a stream not after the first part; `reload NAME`, `busy NAME` or `missing NAME`, which that server
refuses; and `hold` for all servers. It ends when its input is closed.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer, add_GRPCInferenceServiceServicer_to_server

MISSING = "Request for unknown model: 'm' is not found"
REFUSALS = {"reload": "Stub process 'm_0_0' is not healthy.", "busy": "the model's queue is full", "missing": MISSING}
STREAMED = 3


class Stub:
    """What a server does with a text, for both protocols."""

    def __init__(self, name: str, rows: int, log: Path) -> None:
        self.name, self.rows, self._log = name, rows, log

    def refusal(self, text: str, *, begun: bool = False) -> str | None:
        """Log a request; return the message of its refusal, or None to answer it. Held requests never return."""
        command, _, name = text.partition(" ")
        mine = name in ("", self.name)
        held = mine and (command == "held-stream" if begun else command == "hold")
        with self._log.open("a") as log:
            log.write(f"{self.name} {'held' if held else 'seen'} {text}\n")
        if held:
            threading.Event().wait()
        return REFUSALS.get(command) if mine and not begun else None


class Grpc(GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, stub: Stub) -> None:
        self._stub = stub

    def ServerReady(self, _request: Any, _context: Any) -> Any:
        return messages.ServerReadyResponse(ready=True)

    def ModelReady(self, request: Any, _context: Any) -> Any:
        return messages.ModelReadyResponse(ready=request.name in ("m", self._stub.name))

    def ModelMetadata(self, request: Any, _context: Any) -> Any:
        return messages.ModelMetadataResponse(name=request.name, versions=["1"])

    def ModelConfig(self, _request: Any, _context: Any) -> Any:
        return messages.ModelConfigResponse(config=model_config_pb2.ModelConfig(max_batch_size=self._stub.rows))

    def ModelInfer(self, request: Any, context: Any) -> Any:
        refusal = self._stub.refusal(_text(request))
        if refusal is not None:
            missing = refusal == MISSING
            context.abort(grpc.StatusCode.NOT_FOUND if missing else grpc.StatusCode.UNAVAILABLE, refusal)
        return self._answer("label", request.inputs[0].shape)

    def ModelStreamInfer(self, requests: Iterator[Any], _context: Any) -> Iterator[Any]:
        for request in requests:
            text = _text(request)
            refusal = self._stub.refusal(text)
            if refusal is not None:
                yield messages.ModelStreamInferResponse(
                    error_message=refusal if refusal == MISSING else f"[UNAVAILABLE] {refusal}"
                )
                return
            for number in range(STREAMED):
                if number:
                    self._stub.refusal(text, begun=True)
                answer = self._answer("text_output", [1])
                answer.parameters["triton_final_response"].bool_param = number == STREAMED - 1
                yield messages.ModelStreamInferResponse(infer_response=answer)

    def _answer(self, output: str, shape: Any) -> Any:
        answer = messages.ModelInferResponse(model_name="m", model_version="1")
        answer.outputs.add(name=output, datatype="BYTES", shape=shape)
        name = self._stub.name.encode()
        answer.raw_output_contents.append((len(name).to_bytes(4, "little") + name) * shape[0])
        return answer


def _text(request: Any) -> str:
    (content,) = (
        content
        for tensor, content in zip(request.inputs, request.raw_input_contents, strict=True)
        if tensor.name == "text_input"
    )
    return bytes(content[4 : 4 + int.from_bytes(content[:4], "little")]).decode()


class Http(BaseHTTPRequestHandler):
    stub: Stub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.endswith("/ready"):
            self._send(200 if self.path.split("/")[-2] in ("health", "m", self.stub.name) else 400, {})
        elif self.path.endswith("/config"):
            self._send(200, {"max_batch_size": self.stub.rows})
        else:
            self._send(200, {"name": "m", "versions": ["1"]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/generate_stream"):
            self._stream(json.loads(body)["text_input"])
            return
        start = int(self.headers["Inference-Header-Content-Length"])
        rows = json.loads(body[:start])["inputs"][0]["shape"][0]
        size = int.from_bytes(body[start : start + 4], "little")
        refusal = self.stub.refusal(body[start + 4 : start + 4 + size].decode())
        output = {"name": "label", "datatype": "BYTES", "shape": [rows, 1], "data": [self.stub.name] * rows}
        if refusal is None:
            self._send(200, {"outputs": [output]})
        else:
            self._refuse(refusal)

    def _stream(self, text: str) -> None:
        refusal = self.stub.refusal(text)
        if refusal is not None:
            self._refuse(refusal)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(STREAMED):
            if number:
                self.stub.refusal(text, begun=True)
            event = f"data: {json.dumps({'text_output': self.stub.name})}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def _refuse(self, refusal: str) -> None:
        self._send(404 if refusal == MISSING else 503, {"error": refusal})

    def _send(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(name: str, http_port: str, grpc_port: str, rows: str, log: str) -> None:
    stub = Stub(name, int(rows), Path(log))
    server = grpc.server(ThreadPoolExecutor(64), options=[("grpc.so_reuseport", 0)])
    add_GRPCInferenceServiceServicer_to_server(Grpc(stub), server)
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    server.start()
    http = ThreadingHTTPServer(("127.0.0.1", int(http_port)), type("Handler", (Http,), {"stub": stub}))
    threading.Thread(target=http.serve_forever, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    # Held requests would be waited for.
    sys.exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
