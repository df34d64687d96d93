"""Responses of a decoupled model over HTTP: Triton's `generate_stream`, JSON in and server-sent events out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import numpy as np

from tidal_client.codec import InferRequest
from tidal_client.errors import from_coded, from_http, from_stream
from tidal_client.results import Array

# An event is a line, and a whole answer may be one event.
_LONGEST_EVENT = 1 << 24
_PREFIX = b"data:"
_NO_OUTPUTS = frozenset({"id", "model_name", "model_version", "parameters"})


def open_stream() -> aiohttp.ClientSession:
    """A session for one request; leaving it closes the connection, which tells the server that the client has gone."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), read_bufsize=_LONGEST_EVENT)


def stream_body(request: InferRequest) -> dict[str, Any]:
    """The JSON of a request: inputs of one value or a list, and its parameters beside them."""
    inputs = {name: _plain(array) for name, array in request.inputs.items()}
    named = {"id": request.request_id} if request.request_id else {}
    return {**inputs, **request.parameters, **named}


async def read_events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Array]]:
    """Arrays by output name of each event.

    Raises:
        RequestError: the response is an error, or an event is.
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
    """What a response says, as JSON, as an event, or as it is."""
    text = body.decode(errors="replace").strip().removeprefix(_PREFIX.decode()).strip()
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text


def _plain(array: Array) -> Any:
    values = [each.decode() if isinstance(each, bytes) else each for each in array.tolist()]
    return values[0] if array.shape == (1,) else values


def _array(value: Any) -> Array:
    """A list, or the only value of one; texts are `bytes`."""
    values = value if isinstance(value, list) else [value]
    if values and isinstance(values[0], str):
        return np.array([each.encode() for each in values], object)
    return np.array(values)
