"""Streams over HTTP with Triton's `generate_stream`: JSON requests, server-sent events as responses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tidal_client.codec import InferRequest
from tidal_client.errors import RequestError, from_coded, from_http, from_stream
from tidal_client.results import Array
from tidal_client.transports.http_messages import error_message

_PREFIX = b"data:"
_NO_OUTPUTS = frozenset({"id", "model_name", "model_version", "parameters"})


def stream_body(request: InferRequest) -> bytes:
    """Return the JSON of a request: inputs as a value or a list, and its parameters."""
    inputs = {name: _plain(array) for name, array in request.inputs.items()}
    named = {"id": request.request_id} if request.request_id else {}
    return json.dumps({**inputs, **request.parameters, **named}).encode()


def read_event(line: bytes) -> dict[str, Array] | None:
    """Return the arrays of an event by output name; None: the line is no event.

    Raises:
        RequestError: The event is an error.
    """
    if not line.startswith(_PREFIX):
        return None
    event = json.loads(line.removeprefix(_PREFIX))
    if "error" in event:
        raise from_stream(str(event["error"]))
    return {name: _array(value) for name, value in event.items() if name not in _NO_OUTPUTS}


def stream_error(status: int, body: bytes) -> RequestError:
    """Return the error for a response other than 200 to the request of a stream."""
    message = error_message(body)
    return from_coded(message) or from_http(status, message)


def _plain(array: Array) -> Any:
    values = [each.decode() if isinstance(each, bytes) else each for each in array.tolist()]
    return values[0] if array.shape == (1,) else values


def _array(value: Any) -> Array:
    """Return a list or a single value as an array; texts become `bytes`."""
    values = value if isinstance(value, list) else [value]
    if values and isinstance(values[0], str):
        return np.array([each.encode() for each in values], object)
    return np.array(values)
