"""`python -m benchmarks.gateway.free_engine`: a Triton over gRPC and an OpenAI server over HTTP that answer at once.

Every answer is constant, so that a front process before them is measured alone. It prints the ports of gRPC and HTTP,
and ends when its input is closed.
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
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as messages

from benchmarks.constant_http import ConstantHttp

DIMENSIONS = 384
CLASSIFIER, EMBEDDER = "intent", "minilm"
_LABEL = b"book_flight"
_VECTOR = np.linspace(-0.1, 0.1, DIMENSIONS, dtype=np.float32)
_TEXT = messages.ModelMetadataResponse.TensorMetadata(name="text_input", datatype="BYTES", shape=[-1, 1])
# Outputs by model: name, datatype, shape, content.
_OUTPUTS: dict[str, list[tuple[str, str, list[int], bytes]]] = {
    CLASSIFIER: [
        ("label", "BYTES", [1, 1], struct.pack("<I", len(_LABEL)) + _LABEL),
        ("logits", "FP32", [1, 8], np.linspace(-4, 4, 8, dtype=np.float32).tobytes()),
        ("probabilities", "FP32", [1, 8], np.full(8, 0.125, np.float32).tobytes()),
    ],
    EMBEDDER: [("embedding", "FP32", [1, DIMENSIONS], _VECTOR.tobytes())],
}


@contextmanager
def answering() -> Iterator[tuple[str, str]]:
    """Start both servers in another process and yield their addresses, ``host:port`` of gRPC and HTTP."""
    command = [sys.executable, "-m", __spec__.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ports = process.stdout.readline().split()
        yield f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"


def _answer(model: str) -> bytes:
    answer = messages.ModelInferResponse(model_name=model, model_version="1")
    for name, datatype, shape, content in _OUTPUTS[model]:
        answer.outputs.add(name=name, datatype=datatype, shape=shape)
        answer.raw_output_contents.append(content)
    return bytes(answer.SerializeToString())


def _metadata(model: str) -> bytes:
    found = messages.ModelMetadataResponse(name=model, versions=["1"], inputs=[_TEXT])
    for name, datatype, shape, _ in _OUTPUTS[model]:
        found.outputs.add(name=name, datatype=datatype, shape=[-1, *shape[1:]])
    return bytes(found.SerializeToString())


def _methods() -> dict[str, grpc.RpcMethodHandler]:
    """Handlers of raw messages: no message of an inference is parsed but for the name of its model."""
    answers = {name.encode(): _answer(name) for name in _OUTPUTS}
    rows = [messages.ModelStatistics(name=name, version="1") for name in _OUTPUTS]
    statistics = messages.ModelStatisticsResponse(model_stats=rows).SerializeToString()
    config = messages.ModelConfigResponse(config=model_config_pb2.ModelConfig(max_batch_size=64, backend="free"))
    described = config.SerializeToString()
    live = messages.ServerLiveResponse(live=True).SerializeToString()

    async def infer(request: bytes, _context: object) -> bytes:
        # The first field of the message is the name, with its length before it.
        return answers[request[2 : 2 + request[1]]]

    async def metadata(request: bytes, _context: object) -> bytes:
        return _metadata(messages.ModelMetadataRequest.FromString(request).name)

    def constant(content: bytes) -> grpc.RpcMethodHandler:
        async def answer(_request: bytes, _context: object) -> bytes:
            return content

        return grpc.unary_unary_rpc_method_handler(answer)

    return {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(infer),
        "ModelMetadata": grpc.unary_unary_rpc_method_handler(metadata),
        "ModelStatistics": constant(statistics),
        "ModelConfig": constant(described),
        "ServerLive": constant(live),
    }


def _openai_answer() -> bytes:
    document = {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": _VECTOR.tolist()}],
        "model": EMBEDDER,
        "usage": {"prompt_tokens": 8, "total_tokens": 8},
    }
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _serve() -> None:
    answer = _openai_answer()
    http = await asyncio.get_running_loop().create_server(lambda: ConstantHttp(answer), "127.0.0.1", 0)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("inference.GRPCInferenceService", _methods())]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, http.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)
    http.close()


if __name__ == "__main__":
    asyncio.run(_serve())
