"""A request as its tensors and parameters, and as the bytes of either protocol, whatever is wrong with it."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from tritonclient.grpc import service_pb2 as messages

Parameter = str | int | float | bool


@dataclass
class Tensor:
    """An input; `content` may be other than what `shape` and `datatype` say."""

    name: str
    datatype: str
    shape: list[int]
    content: bytes


@dataclass
class Wire:
    """A request to a model."""

    model: str
    inputs: list[Tensor]
    version: str = ""
    outputs: list[str] = field(default_factory=list)
    parameters: dict[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Method, path, headers and body as they are sent."""

    path: str
    headers: dict[str, str]
    body: bytes
    method: str = "POST"


def element(content: bytes) -> bytes:
    """One element of a BYTES tensor."""
    return struct.pack("<I", len(content)) + content


def head(wire: Wire) -> dict[str, Any]:
    """The JSON part of a request over HTTP."""
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


def to_http(wire: Wire) -> HttpRequest:
    """A request as HTTP carries it."""
    return with_head(wire, json.dumps(head(wire)).encode())


def with_head(wire: Wire, description: bytes, **headers: str) -> HttpRequest:
    """A request with this in place of its JSON part."""
    body = description + b"".join(each.content for each in wire.inputs)
    named = {"Inference-Header-Content-Length": str(len(description))}
    return HttpRequest(path(wire), named | {k.replace("_", "-"): v for k, v in headers.items()}, body)


def path(wire: Wire) -> str:
    """Where a request goes."""
    version = f"/versions/{quote(wire.version, safe='')}" if wire.version else ""
    return f"/v2/models/{quote(wire.model, safe='')}{version}/infer"


def to_grpc(wire: Wire) -> Any:
    """A request as a gRPC message."""
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
