"""Streams over HTTP with Triton's `generate_stream`: JSON requests, server-sent events as responses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import numpy as np

from tidal_client.codec import InferRequest
from tidal_client.errors import from_coded, from_http, from_stream
from tidal_client.results import Array

# Maximum length of an event: an event is one line, and may contain a complete response.
_LONGEST_EVENT = 1 << 24
_PREFIX = b"data:"
_NO_OUTPUTS = frozenset({"id", "model_name", "model_version", "parameters"})


def open_stream() -> aiohttp.ClientSession:
    """Open a session for one request; closing it closes the connection, which cancels the request."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), read_bufsize=_LONGEST_EVENT)


def stream_body(request: InferRequest) -> dict[str, Any]:
    """Return the JSON of a request: inputs as a value or a list, and its parameters."""
    inputs = {name: _plain(array) for name, array in request.inputs.items()}
    named = {"id": request.request_id} if request.request_id else {}
    return {**inputs, **request.parameters, **named}


async def read_events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Array]]:
    """Yield the arrays of each event by output name.

    Raises:
        RequestError: The response or an event is an error.
    """
    if response.status != 200:
        message = _error(await response.read())
        raise from_coded(message) or from_http(response.status, message)
    async for line in response.content:
        if line.startswith(_PREFIX):
            event = json.loads(line.removeprefix(_PREFIX))
            if "error" in event:
                raise from_stream(str(event["error"]))
            yield {name: _array(value) for name, value in event.items() if name not in _NO_OUTPUTS}


def _error(body: bytes) -> str:
    """Return the message of an error response: JSON, an event, or plain text."""
    text = body.decode(errors="replace").strip().removeprefix(_PREFIX.decode()).strip()
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text


def _plain(array: Array) -> Any:
    values = [each.decode() if isinstance(each, bytes) else each for each in array.tolist()]
    return values[0] if array.shape == (1,) else values


def _array(value: Any) -> Array:
    """Return a list or a single value as an array; texts become `bytes`."""
    values = value if isinstance(value, list) else [value]
    if values and isinstance(values[0], str):
        return np.array([each.encode() for each in values], object)
    return np.array(values)
