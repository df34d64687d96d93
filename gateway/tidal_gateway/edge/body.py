"""Reading of request bodies, within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tidal_gateway.edge.exchange import BROKEN_KEY, COMPLETE_KEY
from tidal_gateway.errors import Refusal, invalid

Receive = Callable[[], Awaitable[Any]]


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete."""


async def read_body(
    scope: Mapping[str, Any], receive: Receive, headers: Mapping[str, str], max_bytes: int, timeout_s: float
) -> bytes:
    """Read the body of a request.

    Args:
        scope: ASGI scope of the request.
        receive: ASGI's `receive`.
        headers: Headers by lower-case name.
        max_bytes: Largest size.
        timeout_s: Longest time until the body is complete, in seconds.

    Raises:
        Refusal: The body is too large, compressed, no valid HTTP, or does not arrive in time.
        ClientDisconnected: The client disconnected.
    """
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit():
        raise invalid(f"header content-length: expected a number of bytes, got '{length[:40]}'")
    if len(length) > 18 or int(length) > max_bytes:
        raise _too_large(max_bytes)
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "compressed request bodies are not accepted; send the body as it is", code="unsupported")
    message = await _receive_within(scope, receive, timeout_s)
    if not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        return body
    parts, size = [message.get("body", b"")], len(message.get("body", b""))
    end = asyncio.get_running_loop().time() + timeout_s
    while message.get("more_body", False):
        if size > max_bytes:
            raise _too_large(max_bytes)
        message = await _receive_within(scope, receive, end - asyncio.get_running_loop().time())
        parts.append(message.get("body", b""))
        size += len(parts[-1])
    if size > max_bytes:
        raise _too_large(max_bytes)
    return b"".join(parts)


async def _receive_within(scope: Mapping[str, Any], receive: Receive, timeout_s: float) -> Any:
    try:
        if scope.get(COMPLETE_KEY):  # without a timer, which takes 5 µs
            message = await receive()
        else:
            async with asyncio.timeout(timeout_s):
                message = await receive()
    except TimeoutError:
        raise Refusal(408, "the body of the request did not arrive in time", code="timeout") from None
    if message["type"] == "http.disconnect":
        raise ClientDisconnected
    if scope.get(BROKEN_KEY):
        raise Refusal(400, "the body of the request is not valid HTTP; send it as its headers say", code="invalid_http")
    return message


def _too_large(max_bytes: int) -> Refusal:
    return Refusal(
        413,
        f"the body of the request is too large; accepted are up to max_body_bytes, {max_bytes} bytes: "
        "send fewer inputs at a time",
        code="too_large",
    )
