"""What can go wrong with a request, the same over HTTP and gRPC."""

from __future__ import annotations

import re
from typing import ClassVar


class RequestError(Exception):
    """A request that got no answer. The message is one sentence, the server's own where the server refused it."""

    code: ClassVar[str] = "UNKNOWN"


class InvalidArgument(RequestError):
    """The request cannot be accepted as it is: input, shape, option or model configuration."""

    code = "INVALID_ARG"


class NotFound(RequestError):
    """The server has no such model or version, or nothing at this address."""

    code = "NOT_FOUND"


class Unavailable(RequestError):
    """Overload, a missed `latency_ms`, or a model that is being loaded again; the same request may succeed later."""

    code = "UNAVAILABLE"


class Cancelled(RequestError):
    """The request was withdrawn, or the client closed, before the answer came."""

    code = "CANCELLED"


class Unsupported(RequestError):
    """This model or protocol does not offer what was asked for."""

    code = "UNSUPPORTED"


class ServerError(RequestError):
    """The server failed on a request that was well formed."""

    code = "INTERNAL"


class DeadlineExceeded(RequestError, TimeoutError):
    """No answer within the client's `timeout_s`; whether the server worked on the request is not known."""

    code = "DEADLINE_EXCEEDED"


class ConnectionFailed(RequestError, ConnectionError):
    """Nobody answers at the address, or the connection broke before the answer came."""

    code = "CONNECTION_FAILED"


# What Triton puts in front of what a model says: the request, and the ensembles that it came through.
_WHERE = r"(\[request id: .*?\] )?(in ensemble '[^']*', )*"

# Triton's HTTP reports CANCELLED as 400, like INVALID_ARG, so only its sentence tells the two apart.
_CANCELLED = re.compile(
    _WHERE + r"(the )?(request (was |has been )?cancell?ed|client cancell?ed the request)\b",
    re.IGNORECASE,
)

_HTTP: dict[int, type[RequestError]] = {
    404: NotFound,
    501: Unsupported,
    # 429, 502 and 504 are a proxy's words for it.
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

# gRPC reports a server's UNAVAILABLE and a broken connection by one code; these sentences are gRPC's own.
_GRPC_CONNECTION = re.compile(
    r"failed to connect to|errors resolving|DNS resolution failed|Stream removed|Socket closed|recvmsg:|sendmsg:"
    r"|Connection (reset|refused)|Broken pipe|GOAWAY received|Endpoint closing|No route to host|Transport closed",
)


# What Triton says while the process of a Python model has crashed (INTERNAL), and while that model is loaded again or
# is unloaded (NOT_FOUND): the request was not run.
_RESTARTING = re.compile(
    _WHERE + r"(Failed to process the request\(s\) for model instance '[^']*', message: )?"
    r"(Stub process( '[^']*')? is not healthy|Request for unknown model: '[^']*' has no available versions)"
)

# Triton's sentence for `infer` on a model that may send several responses, of either protocol.
_DECOUPLED = re.compile(r"doesn't support models with decoupled transaction policy")
_DECOUPLED_HELP = "this model streams its answers: use Client.generate or `tidal generate` instead of infer"

# Triton passes a model's error on without its code in streams and through `generate`: Tidal's models put it in front.
_CODED = re.compile(_WHERE + r"\[(?P<code>[A-Z_]+)\] (?P<message>.*)", re.DOTALL)
_CODES: dict[str, type[RequestError]] = {
    each.code: each for each in (InvalidArgument, NotFound, Unavailable, Cancelled, Unsupported, ServerError)
}
# What Triton itself says of a request that it does not hand to the model.
_NO_MODEL = re.compile(r"unknown model|is not found|is not ready", re.IGNORECASE)
_BROKEN = re.compile(r"Failed to process", re.IGNORECASE)


def from_coded(message: str) -> RequestError | None:
    """The error of a model that puts its code in front of its message, else None."""
    found = _CODED.fullmatch(message)
    kind = None if found is None else _CODES.get(found["code"])
    return None if found is None or kind is None else kind(found["message"])


def from_stream(message: str) -> RequestError:
    """The error for a message in a stream, which comes without a code."""
    if _RESTARTING.match(message):
        return Unavailable(message)
    if _BROKEN.search(message):
        return ServerError(message)
    return from_coded(message) or (NotFound if _NO_MODEL.search(message) else InvalidArgument)(message)


def from_http(status: int, message: str) -> RequestError:
    """The error for an HTTP status. 400 stands for INVALID_ARG, UNKNOWN and ALREADY_EXISTS alike."""
    if status == 400 and _CANCELLED.match(message):
        return Cancelled(message)
    if (known := _known(message)) is not None:
        return known
    other = InvalidArgument if 400 <= status < 500 else ServerError
    return _HTTP.get(status, other)(message)


def from_grpc(status: str, message: str) -> RequestError:
    """The error for a gRPC status code's name, for example ``UNAVAILABLE``; other codes are a `ServerError`."""
    if status == "UNAVAILABLE" and _GRPC_CONNECTION.match(message):
        return ConnectionFailed(message)
    if (known := _known(message)) is not None:
        return known
    return _GRPC.get(status, ServerError)(message)


def _known(message: str) -> RequestError | None:
    """The error for a sentence of Triton's own whose code does not say what to do, else None."""
    if _RESTARTING.match(message):
        return Unavailable(message)
    if _DECOUPLED.search(message):
        return Unsupported(f"{message}; {_DECOUPLED_HELP}")
    return None
