"""Errors of requests, the same over HTTP and gRPC."""

from __future__ import annotations

import re
from typing import ClassVar


class RequestError(Exception):
    """Base class of all request errors. The message is one sentence; the server's own if the server sent one."""

    code: ClassVar[str] = "UNKNOWN"


class InvalidArgument(RequestError):
    """The request is invalid: an input, a shape, an option, or the model's configuration."""

    code = "INVALID_ARG"


class NotFound(RequestError):
    """The server has no such model, version or URL path."""

    code = "NOT_FOUND"


class Unavailable(RequestError):
    """Overload, a missed `latency_ms`, or a model that is being reloaded; the request may succeed later."""

    code = "UNAVAILABLE"


class Cancelled(RequestError):
    """The request was cancelled, or the client closed, before the response arrived."""

    code = "CANCELLED"


class Unsupported(RequestError):
    """The model or the protocol does not support the request."""

    code = "UNSUPPORTED"


class ServerError(RequestError):
    """The server failed on a valid request."""

    code = "INTERNAL"


class DeadlineExceeded(RequestError, TimeoutError):
    """No response within the client's `timeout_s`; the server may have run the request or not."""

    code = "DEADLINE_EXCEEDED"


class ConnectionFailed(RequestError, ConnectionError):
    """No server answers at the address, or the connection broke before the response arrived."""

    code = "CONNECTION_FAILED"
    #: Whether there was a connection, so that the server may have run the request.
    reached = True


# Prefix of Triton's before a model's message: the request id and the ensembles.
_WHERE = r"(\[request id: .*?\] )?(in ensemble '[^']*', )*"

# Triton's HTTP reports CANCELLED as 400, like INVALID_ARG; only the message differs.
_CANCELLED = re.compile(
    _WHERE + r"(the )?(request (was |has been )?cancell?ed|client cancell?ed the request)\b",
    re.IGNORECASE,
)

_HTTP: dict[int, type[RequestError]] = {
    404: NotFound,
    501: Unsupported,
    # 429, 502 and 504 come from proxies.
    429: Unavailable,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}

_GRPC: dict[str, type[RequestError]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "NOT_FOUND": NotFound,
    "UNAVAILABLE": Unavailable,
    "CANCELLED": Cancelled,
    "UNIMPLEMENTED": Unsupported,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
}

# gRPC uses one code for a server's UNAVAILABLE and for a broken connection; these messages are gRPC's own.
_GRPC_CONNECTION = re.compile(
    r"failed to connect to|errors resolving|DNS resolution failed|Stream removed|Socket closed|recvmsg:|sendmsg:"
    r"|Connection (reset|refused)|Broken pipe|GOAWAY received|Cancelling all calls|Endpoint closing|No route to host"
    r"|Transport closed",
)
# The status that grpc.aio makes up (INTERNAL) when a message cannot be written to a stream: its connection is lost.
_GRPC_NOT_WRITTEN = "Internal error from Core"

# Triton's messages after the process of a Python model crashed (INTERNAL), and while the model is reloaded or unloaded
# (NOT_FOUND): the request was not run.
_RESTARTING = re.compile(
    _WHERE + r"(Failed to process the request\(s\) for model instance '[^']*', message: )?"
    r"(Stub process( '[^']*')? is not healthy|Request for unknown model: '[^']*' has no available versions)"
)

# Triton's message (NOT_FOUND) for a model that it has not loaded: it may be starting, and another server may have it.
_NOT_LOADED = re.compile(_WHERE + r"Request for unknown model: '[^']*' is not found")

# Triton's message, over both protocols, for `infer` on a model that may send several responses.
_DECOUPLED = re.compile(r"doesn't support models with decoupled transaction policy")
_DECOUPLED_HELP = "this model streams its responses: use Client.generate or `tidal generate` instead of infer"

# In streams and in `generate`, Triton drops the code of a model's error, so Tidal's models prepend it to the message.
_CODED = re.compile(_WHERE + r"\[(?P<code>[A-Z_]+)\] (?P<message>.*)", re.DOTALL)
_CODES: dict[str, type[RequestError]] = {
    each.code: each for each in (InvalidArgument, NotFound, Unavailable, Cancelled, Unsupported, ServerError)
}
# Triton's own messages about requests that do not reach the model.
_NO_MODEL = re.compile(r"unknown model|is not found|is not ready", re.IGNORECASE)
_BROKEN = re.compile(r"Failed to process", re.IGNORECASE)


def is_not_loaded(error: RequestError) -> bool:
    """Whether a server answered that it has not loaded the model; another server of a client may have."""
    return isinstance(error, NotFound) and _NOT_LOADED.match(str(error)) is not None


def from_coded(message: str) -> RequestError | None:
    """Return the error for a message with a code prepended, else None."""
    found = _CODED.fullmatch(message)
    kind = None if found is None else _CODES.get(found["code"])
    return None if found is None or kind is None else kind(found["message"])


def from_stream(message: str) -> RequestError:
    """Return the error for a message in a stream, where Triton sends no code."""
    if _RESTARTING.match(message):
        return Unavailable(message)
    if _BROKEN.search(message):
        return ServerError(message)
    return from_coded(message) or (NotFound if _NO_MODEL.search(message) else InvalidArgument)(message)


def from_http(status: int, message: str) -> RequestError:
    """Return the error for an HTTP status; 400 covers INVALID_ARG, UNKNOWN and ALREADY_EXISTS."""
    if status == 400 and _CANCELLED.match(message):
        return Cancelled(message)
    if (known := _known(message)) is not None:
        return known
    other = InvalidArgument if 400 <= status < 500 else ServerError
    return _HTTP.get(status, other)(message)


def from_grpc(status: str, message: str) -> RequestError:
    """Return the error for the name of a gRPC status code, such as ``UNAVAILABLE``; unknown codes: `ServerError`."""
    if status == "UNAVAILABLE" and _GRPC_CONNECTION.match(message):
        return ConnectionFailed(message)
    if status == "INTERNAL" and message == _GRPC_NOT_WRITTEN:
        return ConnectionFailed(message)
    if (known := _known(message)) is not None:
        return known
    return _GRPC.get(status, ServerError)(message)


def _known(message: str) -> RequestError | None:
    """Return the error for a message of Triton's whose code is misleading, else None."""
    if _RESTARTING.match(message):
        return Unavailable(message)
    if _DECOUPLED.search(message):
        return Unsupported(f"{message}; {_DECOUPLED_HELP}")
    return None
