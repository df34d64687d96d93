"""A request as tensors and parameters, valid or not, and its encoding in both protocols."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from tritonclient.grpc import service_pb2 as messages

Parameter = str | int | float | bool


@dataclass
class WireTensor:
    """An input; `content` may contradict `shape` and `datatype`."""

    name: str
    datatype: str
    shape: list[int]
    content: bytes


@dataclass
class WireRequest:
    """A request to a model, before it is encoded."""

    model: str
    inputs: list[WireTensor]
    version: str = ""
    outputs: list[str] = field(default_factory=list)
    parameters: dict[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An encoded HTTP request: method, path, headers and body."""

    path: str
    headers: dict[str, str]
    body: bytes
    method: str = "POST"


def element(content: bytes) -> bytes:
    """Encode one element of a BYTES tensor."""
    return struct.pack("<I", len(content)) + content


def head(wire: WireRequest) -> dict[str, Any]:
    """Return the JSON part of a request over HTTP."""
    found: dict[str, Any] = {
        "inputs": [
            {
                "name": each.name,
                "datatype": each.datatype,
                "shape": each.shape,
                "parameters": {"binary_data_size": len(each.content)},
            }
            for each in wire.inputs
        ],
        "parameters": dict(wire.parameters),
    }
    if wire.outputs:
        found["outputs"] = [{"name": name} for name in wire.outputs]
    return found


def to_http(wire: WireRequest) -> HttpRequest:
    """Encode a request for HTTP."""
    return with_head(wire, json.dumps(head(wire)).encode())


def with_head(wire: WireRequest, description: bytes, **headers: str) -> HttpRequest:
    """Encode a request for HTTP with another JSON part.

    Args:
        wire: Request to encode.
        description: Bytes that replace the JSON part.
        headers: Further headers.
    """
    body = description + b"".join(each.content for each in wire.inputs)
    named = {"Inference-Header-Content-Length": str(len(description))}
    return HttpRequest(path(wire), named | {k.replace("_", "-"): v for k, v in headers.items()}, body)


def path(wire: WireRequest) -> str:
    """Return the path of a request."""
    version = f"/versions/{quote(wire.version, safe='')}" if wire.version else ""
    return f"/v2/models/{quote(wire.model, safe='')}{version}/infer"


def to_grpc(wire: WireRequest) -> Any:
    """Encode a request as a gRPC message."""
    request = messages.ModelInferRequest(model_name=wire.model, model_version=wire.version)
    for each in wire.inputs:
        request.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        request.raw_input_contents.append(each.content)
    for name in wire.outputs:
        request.outputs.add(name=name)
    for name, value in wire.parameters.items():
        kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
        setattr(request.parameters[name], kinds[type(value)], value)
    return request
