"""Mutations that depend on the protocol, and malformed requests to a model that generates text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tritonclient.grpc import service_pb2 as messages

from reliability.fuzzing.wire import HttpRequest, WireRequest, element, head, path, to_grpc, with_head

HttpMutation = Callable[[random.Random, WireRequest], HttpRequest]
GrpcMutation = Callable[[random.Random, WireRequest], Any]


def broken_json(draw: random.Random, wire: WireRequest) -> HttpRequest:
    """Truncate the JSON part, or insert other bytes."""
    whole = json.dumps(head(wire)).encode()
    place = draw.randrange(1, len(whole) - 1)
    return with_head(wire, draw.choice((whole[:place], whole[:place] + b"\x00\xff" + whole[place:], b"[" * 100, b"")))


def other_json(draw: random.Random, wire: WireRequest) -> HttpRequest:
    """Use JSON with a wrong structure."""
    found = head(wire)
    tensor = found["inputs"][0]
    match draw.randrange(9):
        case 0:
            found = draw.choice(list[Any]([[found], "text", 5, None, True]))
        case 1:
            found["inputs"] = draw.choice(({"a": 1}, "text", 7, [[[[]]]], [5], ["x"], None))
        case 2:
            tensor["shape"] = draw.choice(("1", [["1"]], ["a", "b"], [1.5, 1], {"a": 1}, None, [None]))
        case 3:
            tensor["name"] = draw.choice((5, None, [], {}, True))
        case 4:
            tensor["datatype"] = draw.choice((5, None, [], {}))
        case 5:
            found["parameters"] = draw.choice(({"task": [1]}, {"task": {"a": 1}}, {"latency_ms": None}))
        case 6:
            tensor["parameters"] = {"binary_data_size": draw.choice((1 << 40, "many", -1, 1.5, None))}
        case 7:
            tensor["parameters"] = {"shared_memory_region": "none", "shared_memory_byte_size": 64}
        case _:
            del tensor[draw.choice(("name", "datatype", "shape"))]
    return with_head(wire, json.dumps(found).encode())


def wrong_headers(draw: random.Random, wire: WireRequest) -> HttpRequest:
    """Use headers that do not match the body."""
    whole = json.dumps(head(wire)).encode()
    match draw.randrange(3):
        case 0:
            lie = draw.choice(("999999999", "-1", "abc", "1e3", "9" * 40, "1", str(len(whole) - 1)))
            return with_head(wire, whole, Inference_Header_Content_Length=lie)
        case 1:
            return with_head(wire, whole, Content_Encoding=draw.choice(("gzip", "deflate")))
        case _:
            return HttpRequest(path(wire), {}, draw.choice((b"", draw.randbytes(300), b"\x00" * 50, b"{}")))


def other_path(draw: random.Random, wire: WireRequest) -> HttpRequest:
    """Use a path that the server does not have."""
    paths = (
        "/v2/models",
        "/v2/models//infer",
        "/v2/model/x/infer",
        "/v3",
        "/",
        "/v2/models/c_small/infer/x",
        "/a" * 900,
    )
    return HttpRequest(draw.choice(paths), {}, b"{}", draw.choice(("POST", "PUT", "DELETE")))


HTTP: tuple[HttpMutation, ...] = (broken_json, other_json, wrong_headers, other_path)


def wrong_count(draw: random.Random, wire: WireRequest) -> Any:
    """Send fewer contents than inputs."""
    request = to_grpc(wire)
    del request.raw_input_contents[-1]
    if len(wire.inputs) == 1:
        request.inputs[0].contents.int_contents.append(draw.randrange(100))
    return request


def two_contents(draw: random.Random, wire: WireRequest) -> Any:
    """Send contents in both fields, or of another type."""
    request = to_grpc(wire)
    if draw.random() < 0.5:
        del request.raw_input_contents[:]
    request.inputs[0].contents.fp32_contents.extend([float("nan")] * draw.choice((1, 16, 1000)))
    return request


def no_region(draw: random.Random, wire: WireRequest) -> Any:
    """Use shared memory that is not registered."""
    request = to_grpc(wire)
    del request.raw_input_contents[:]
    for tensor in request.inputs:
        tensor.parameters["shared_memory_region"].string_param = draw.choice(("none", "", "/dev/shm/x", "a" * 3000))
        tensor.parameters["shared_memory_byte_size"].int64_param = draw.choice((64, -1, 1 << 60))
    return request


GRPC: tuple[GrpcMutation, ...] = (wrong_count, two_contents, no_region)

_GENERATE: tuple[dict[str, Any], ...] = (
    {}, {"text": "a"}, {"text_input": ""}, {"text_input": "good " * 500}, {"text_input": "a" * 100_000},
    {"text_input": "a", "input_ids": [1]}, {"input_ids": [-1]}, {"input_ids": [1 << 40]}, {"input_ids": [257]},
    {"input_ids": [1] * 5000}, {"text_input": ["a"] * 99}, {"text_input": "a", "stream": [True, False]},
    {"text_input": "a", "task": "x"}, {"text_input": "a", "unknown": 1}, {"text_input": "a", "max_tokens": 0},
    {"text_input": "a", "max_tokens": "many"}, {"text_input": "a", "temperature": -1},
    {"text_input": "a", "top_p": 2}, {"text_input": "a", "top_k": -3}, {"text_input": "a", "seed": -1},
    {"text_input": "a", "repetition_penalty": 0}, {"text_input": "a", "stop": ""}, {"text_input": "a", "stop": "[1]"},
    {"text_input": "a", "stop": json.dumps(["x"] * 9)}, {"text_input": "a", "latency_ms": -5},
    {"text_input": "a", "latency_ms": "nan"}, {"text_input": "a", "max_tokens": True},
)  # fmt: skip
_BODIES = (b"", b"[]", b"{", b'{"text_input": "\xff\xfe"}', b"5", b"null", b'"a"', b'{"text_input": }', b"\x00" * 40)


def generation_http(draw: random.Random) -> HttpRequest:
    """Return a malformed HTTP request to generate text."""
    body = draw.choice(_BODIES) if draw.random() < 0.2 else json.dumps(draw.choice(_GENERATE)).encode()
    return HttpRequest("/v2/models/writer/generate_stream", {}, body)


def generation_grpc(draw: random.Random) -> Any:
    """Return a malformed stream message to generate text, which requests coded errors."""
    request = messages.ModelInferRequest(model_name="writer")
    request.parameters["tidal_coded_errors"].bool_param = True
    fields = draw.choice([each for each in _GENERATE if "text" not in each])
    for name, value in fields.items():
        if name == "text_input":
            texts = value if isinstance(value, list) else [value]
            _add(request, name, "BYTES", len(texts), b"".join(element(each.encode()) for each in texts))
        elif name == "input_ids":
            _add(
                request, name, "INT64", len(value), b"".join(each.to_bytes(8, "little", signed=True) for each in value)
            )
        elif name == "stream":
            _add(request, name, "BOOL", len(value), bytes(value))
        else:
            kinds = {bool: "bool_param", int: "int64_param", str: "string_param"}
            setattr(request.parameters[name], kinds[type(value)], value)
    return request


def _add(request: Any, name: str, datatype: str, size: int, content: bytes) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=[size])
    request.raw_input_contents.append(content)
