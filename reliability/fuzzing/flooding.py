"""Sends hostile requests, each over its own connection or call, and records their outcomes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import grpc

from reliability.fuzzing.hostile_grpc import HostileGrpcMessage
from reliability.fuzzing.hostile_http import HostileHttpRequest

_TIMEOUT_S = 60.0
# Pause after a failed connection: otherwise thousands of requests fail while a server restarts.
_RESTART_PAUSE_S = 0.5
_NO_SERVER = "failed to connect"
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
ABANDONED, CLOSED, TIMED_OUT, UNREACHABLE = "abandoned", "closed", "no answer", "no server"


@dataclass(frozen=True, slots=True)
class HostileOutcome:
    """The outcome of a hostile request.

    Attributes:
        what: Kind of the request.
        size: Size of its body, bytes.
        end: Status or code of its answer, or one of the constants above. A server may also reject a request by closing
            the connection without an answer.
    """

    what: str
    size: int
    end: str

    @property
    def unanswered(self) -> bool:
        """Whether the client timed out or could not connect."""
        return self.end in (TIMED_OUT, UNREACHABLE)


def flood_http(address: str, floods: Iterator[HostileHttpRequest]) -> list[HostileOutcome]:
    """Send HTTP requests one after the other.

    Args:
        address: Address of the server, `host:port`.
        floods: Requests to send.
    """
    host, _, port = address.partition(":")
    return [HostileOutcome(flood.what, flood.body.size, _sent((host, int(port)), flood)) for flood in floods]


def flood_grpc(address: str, calls: Iterator[HostileGrpcMessage]) -> list[HostileOutcome]:
    """Send gRPC messages one after the other over one channel.

    Args:
        address: Address of the server, `host:port`.
        calls: Messages to send.
    """
    options = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
    with grpc.insecure_channel(address, options=options) as channel:
        infer = channel.unary_unary(_METHOD)  # bytes in, bytes out
        return [HostileOutcome(call.what, len(call.content), _called(infer, call)) for call in calls]


def _sent(address: tuple[str, int], flood: HostileHttpRequest) -> str:
    try:
        connection = socket.create_connection(address, _TIMEOUT_S)
    except OSError:
        time.sleep(_RESTART_PAUSE_S)
        return UNREACHABLE
    with connection:
        try:
            connection.sendall(flood.head)
            for part in flood.body.parts:
                connection.sendall(part)
                time.sleep(flood.pause_s)
        except TimeoutError:
            return TIMED_OUT
        except OSError:
            # The server has closed the connection early; its answer may have arrived.
            return _answer(connection)
        return _answer(connection) if flood.waits else ABANDONED


def _answer(connection: socket.socket) -> str:
    """Return the status from the first line of an answer."""
    found = b""
    try:
        while b"\r\n" not in found and len(found) < 1000:
            more = connection.recv(1000)
            if not more:
                break
            found += more
    except TimeoutError:
        return TIMED_OUT
    except OSError:
        return CLOSED
    words = found.split(None, 2)
    return words[1].decode("ascii", "replace") if len(words) > 1 and words[0].startswith(b"HTTP/") else CLOSED


def _called(infer: grpc.UnaryUnaryMultiCallable, call: HostileGrpcMessage) -> str:
    try:
        infer(call.content, timeout=_TIMEOUT_S, metadata=call.metadata)
    except grpc.RpcError as error:
        code = str(error.code().name)
        if code == "UNAVAILABLE" and _NO_SERVER in str(error.details()):
            time.sleep(_RESTART_PAUSE_S)
            return UNREACHABLE
        return {"UNAVAILABLE": CLOSED, "DEADLINE_EXCEEDED": TIMED_OUT}.get(code, code)
    return "OK"
