"""Triton's HTTP messages of requests and responses. Imported by the HTTP transports and the load generator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import numpy as np

from tidal_client.codec import InferRequest
from tidal_client.results import Array, ModelMetadata, TensorSpec
from tidal_client.tensors import input_tensors, output_array

#: Header with the length of the JSON that precedes the tensors in a body.
JSON_LENGTH = "Inference-Header-Content-Length"


def model_path(model: str, action: str = "") -> str:
    """Return the path of a model, or of one of its actions, such as `/infer`."""
    return f"/v2/models/{quote(model, safe='')}{action}"


def ready_path(model: str | None) -> str:
    """Return the path that reports whether a model, or with None the server, is ready."""
    return "/v2/health/ready" if model is None else model_path(model, "/ready")


def infer_body(request: InferRequest) -> tuple[bytes, int]:
    """Return the body of a request, and the length of the JSON at its beginning.

    Raises:
        InvalidArgument: Triton has no datatype for an array.
    """
    tensors = list(input_tensors(request.inputs))
    head: dict[str, Any] = {
        "inputs": [
            {
                "name": tensor.name,
                "shape": tensor.shape,
                "datatype": tensor.datatype,
                "parameters": {"binary_data_size": len(tensor.content)},
            }
            for tensor in tensors
        ]
    }
    if request.request_id:
        head["id"] = request.request_id
    if request.outputs:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in request.outputs]
        head["parameters"] = dict(request.parameters)
    else:
        head["parameters"] = {**request.parameters, "binary_data_output": True}
    description = json.dumps(head).encode()
    return b"".join([description, *(tensor.content for tensor in tensors)]), len(description)


def request_bytes(location: str, path: str, body: bytes, *fields: str) -> bytes:
    """Return a complete POST request.

    Args:
        location: ``host:port`` of the server.
        path: Path of the URL, quoted.
        body: Body of the request.
        fields: Lines of the header besides `Host` and `Content-Length`.
    """
    lines = (f"POST {path} HTTP/1.1", f"Host: {location}", *fields, f"Content-Length: {len(body)}", "", "")
    return "\r\n".join(lines).encode() + body


def response_arrays(body: bytes, json_length: str | None) -> dict[str, Array]:
    """Return the arrays of a response by output name.

    Args:
        body: Body of the response.
        json_length: Value of its header `JSON_LENGTH`; None: the body is JSON only.
    """
    start = len(body) if json_length is None else int(json_length)
    arrays = {}
    for output in json.loads(body[:start]).get("outputs", ()):
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            arrays[output["name"]] = _listed(output)
        else:
            arrays[output["name"]] = output_array(output["datatype"], output["shape"], body[start : start + size])
            start += size
    return arrays


def _listed(output: Mapping[str, Any]) -> Array:
    """Return the array of an output in JSON; texts become `bytes`."""
    if output["datatype"] == "BYTES":
        return np.array([str(each).encode() for each in output["data"]], np.object_).reshape(output["shape"])
    empty = output_array(output["datatype"], (0,), b"")
    return np.array(output["data"], empty.dtype).reshape(output["shape"])


def error_message(body: bytes) -> str:
    """Return the message of an error response: JSON, an event, or plain text of up to 1,000 characters."""
    text = body.decode(errors="replace").strip().removeprefix("data:").strip()
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text[:1000]


def read_max_rows(body: bytes) -> int:
    """Return the maximum number of rows of a request from a model's configuration; 1 without a batch axis."""
    return max(1, int(json.loads(body).get("max_batch_size", 0)))


def read_metadata(body: bytes) -> ModelMetadata:
    """Convert the metadata of a model."""
    metadata = json.loads(body)

    def specs(key: str) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(each["name"], each["datatype"], tuple(each.get("shape", ()))) for each in metadata.get(key, ())
        )

    return ModelMetadata(metadata["name"], tuple(metadata.get("versions", ())), specs("inputs"), specs("outputs"))
