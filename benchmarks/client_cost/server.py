"""`python -m benchmarks.client_cost.server`: a server with Triton's protocols that answers every request alike.

It prints its HTTP and gRPC ports, and ends when its input is closed.
"""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2 as messages

from benchmarks.constant_http import ConstantHttp

_LABEL = b"book_flight"
# Outputs of a classifier with 8 classes: name, datatype, shape, content.
_OUTPUTS = [
    ("label", "BYTES", [1, 1], struct.pack("<I", len(_LABEL)) + _LABEL),
    ("logits", "FP32", [1, 8], np.linspace(-4, 4, 8, dtype=np.float32).tobytes()),
    ("probabilities", "FP32", [1, 8], np.full(8, 0.125, np.float32).tobytes()),
    ("max_length", "INT32", [1, 1], np.array([64], np.int32).tobytes()),
]


@contextmanager
def answering() -> Iterator[dict[str, str]]:
    """Start the server in another process and yield its addresses, ``host:port`` by protocol."""
    command = [sys.executable, "-m", __spec__.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        http, grpc_port = process.stdout.readline().split()
        yield {"grpc": f"127.0.0.1:{grpc_port}", "http": f"127.0.0.1:{http}"}


def grpc_answer() -> bytes:
    """Return the answer as a serialised gRPC message."""
    answer = messages.ModelInferResponse(model_name="model", model_version="1")
    for name, datatype, shape, content in _OUTPUTS:
        answer.outputs.add(name=name, datatype=datatype, shape=shape)
        answer.raw_output_contents.append(content)
    return bytes(answer.SerializeToString())


def http_answer() -> bytes:
    """Return the answer as a complete HTTP response."""
    outputs = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(content)}}
        for name, datatype, shape, content in _OUTPUTS
    ]
    header = json.dumps({"model_name": "model", "model_version": "1", "outputs": outputs}).encode()
    body = header + b"".join(content for *_, content in _OUTPUTS)
    lines = (
        "HTTP/1.1 200 OK\r\n"
        "Content-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return lines.encode() + body


async def _serve() -> None:
    http = await asyncio.get_running_loop().create_server(lambda: ConstantHttp(http_answer()), "127.0.0.1", 0)
    answer = grpc_answer()

    async def infer(_request: bytes, _context: object) -> bytes:
        return answer

    method = grpc.unary_unary_rpc_method_handler(infer)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": method})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(http.sockets[0].getsockname()[1], port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)
    http.close()


if __name__ == "__main__":
    asyncio.run(_serve())
