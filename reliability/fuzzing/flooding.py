"""Hostile requests sent, each over a connection or call of its own, and what became of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import grpc

from reliability.fuzzing.hostile_grpc import Message
from reliability.fuzzing.hostile_http import Flood

_TIMEOUT_S = 60.0
# Else thousands of requests find no server while one is started again.
_AWAY_S = 0.5
_NO_SERVER = "failed to connect"
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
ABANDONED, CLOSED, SILENT, AWAY = "abandoned", "closed", "no answer", "no server"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request.

    Attributes:
        what: its kind.
        size: bytes of its body.
        end: the status or code of its answer, or one of the words above. A connection that the server closes without
            an answer is one way to refuse.
    """

    what: str
    size: int
    end: str

    @property
    def unanswered(self) -> bool:
        """Whether the client would wait, or found no server."""
        return self.end in (SILENT, AWAY)


def flood_http(address: str, floods: Iterator[Flood]) -> list[Outcome]:
    """Send requests one after the other, to `host:port`."""
    host, _, port = address.partition(":")
    return [Outcome(flood.what, flood.body.size, _sent((host, int(port)), flood)) for flood in floods]


def flood_grpc(address: str, calls: Iterator[Message]) -> list[Outcome]:
    """Send messages one after the other over one channel, to `host:port`."""
    options = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
    with grpc.insecure_channel(address, options=options) as channel:
        infer = channel.unary_unary(_METHOD)  # bytes in, bytes out
        return [Outcome(call.what, len(call.content), _called(infer, call)) for call in calls]


def _sent(address: tuple[str, int], flood: Flood) -> str:
    try:
        connection = socket.create_connection(address, _TIMEOUT_S)
    except OSError:
        time.sleep(_AWAY_S)
        return AWAY
    with connection:
        try:
            connection.sendall(flood.head)
            for part in flood.body.parts:
                connection.sendall(part)
                time.sleep(flood.pause_s)
        except TimeoutError:
            return SILENT
        except OSError:
            # Closed by a server that had read enough; its answer may be here all the same.
            return _answer(connection)
        return _answer(connection) if flood.waits else ABANDONED


def _answer(connection: socket.socket) -> str:
    """The status of an answer, as its first line says it."""
    found = b""
    try:
        while b"\r\n" not in found and len(found) < 1000:
            more = connection.recv(1000)
            if not more:
                break
            found += more
    except TimeoutError:
        return SILENT
    except OSError:
        return CLOSED
    words = found.split(None, 2)
    return words[1].decode("ascii", "replace") if len(words) > 1 and words[0].startswith(b"HTTP/") else CLOSED


def _called(infer: grpc.UnaryUnaryMultiCallable, call: Message) -> str:
    try:
        if call.cancelled:
            infer.future(call.content, timeout=_TIMEOUT_S).cancel()
            return ABANDONED
        infer(call.content, timeout=_TIMEOUT_S, metadata=call.metadata)
    except grpc.RpcError as error:
        code = str(error.code().name)
        if code == "UNAVAILABLE" and _NO_SERVER in str(error.details()):
            time.sleep(_AWAY_S)
            return AWAY
        return {"UNAVAILABLE": CLOSED, "DEADLINE_EXCEEDED": SILENT}.get(code, code)
    return "OK"
