"""Requests serialised before a run, so that sending one is cheap."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from tidal_client.errors import InvalidArgument
from tidal_client.options import Parameter
from tidal_client.results import Array
from tidal_client.transports import Address


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    datatype: str
    shape: tuple[int, ...]
    content: bytes


def encode(
    address: Address,
    model: str,
    inputs: Mapping[str, Array],
    outputs: Sequence[str] | None,
    parameters: Mapping[str, Parameter],
) -> bytes:
    """Serialise a request: a complete HTTP request, or a gRPC message.

    Args:
        address: Address of the server; determines the protocol.
        model: Name of the model.
        inputs: Arrays by input name.
        outputs: Names of the outputs to request; None: all.
        parameters: Options as Triton request parameters.

    Raises:
        InvalidArgument: Triton has no datatype for an array.
    """
    tensors = [_tensor(name, np.asarray(value)) for name, value in inputs.items()]
    make = _grpc if address.protocol == "grpc" else _http
    return make(address.location, model, tensors, outputs, parameters)


def _tensor(name: str, value: Array) -> _Tensor:
    if value.dtype.kind == "U":
        value = value.astype(np.object_)
    datatype = np_to_triton_dtype(value.dtype)
    if datatype is None:
        raise InvalidArgument(f"input '{name}': Triton has no datatype for numpy's {value.dtype}")
    content = serialize_byte_tensor(value).item() if datatype == "BYTES" else value.tobytes()
    return _Tensor(name, datatype, value.shape, content)


def _grpc(
    _location: str,
    model: str,
    tensors: Sequence[_Tensor],
    outputs: Sequence[str] | None,
    parameters: Mapping[str, Parameter],
) -> bytes:
    from tritonclient.grpc import service_pb2 as messages

    request = messages.ModelInferRequest(model_name=model)
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.content)
    for name in outputs or ():
        request.outputs.add(name=name)
    for name, value in parameters.items():
        kind = {str: "string_param", int: "int64_param", float: "double_param"}[type(value)]
        setattr(request.parameters[name], kind, value)
    return bytes(request.SerializeToString())


def _http(
    location: str,
    model: str,
    tensors: Sequence[_Tensor],
    outputs: Sequence[str] | None,
    parameters: Mapping[str, Parameter],
) -> bytes:
    head: dict[str, Any] = {
        "inputs": [
            {
                "name": t.name,
                "shape": t.shape,
                "datatype": t.datatype,
                "parameters": {"binary_data_size": len(t.content)},
            }
            for t in tensors
        ],
        "parameters": dict(parameters),
    }
    if outputs:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    else:
        head["parameters"]["binary_data_output"] = True
    description = json.dumps(head).encode()
    body = b"".join([description, *(tensor.content for tensor in tensors)])
    lines = (
        f"POST /v2/models/{quote(model, safe='')}/infer HTTP/1.1\r\n"
        f"Host: {location}\r\n"
        f"Inference-Header-Content-Length: {len(description)}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return lines.encode() + body
