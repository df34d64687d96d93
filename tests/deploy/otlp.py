"""A receiver of OpenTelemetry's spans (OTLP over HTTP, as JSON or protobuf), as a collector is."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

JSON, PROTOBUF = "application/json", "application/x-protobuf"


@dataclass(frozen=True)
class Span:
    """A span as it arrived; ids are hexadecimal, times nanoseconds since 1970."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    begin: int
    end: int
    attributes: dict[str, str]
    events: tuple[str, ...]


@dataclass
class Receiver:
    """What has arrived at an address so far."""

    url: str = ""
    _spans: list[Span] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, body: bytes, kind: str) -> None:
        found = []
        for resource in (json.loads(body) if kind == JSON else _document(body))["resourceSpans"]:
            service = _values(resource["resource"]).get("service.name", "")
            found += [_span(service, each) for scope in resource["scopeSpans"] for each in scope["spans"]]
        with self._lock:
            self._spans += found

    def trace(self, trace: str) -> list[Span]:
        """The spans of a trace, the first that began first."""
        with self._lock:
            return sorted((each for each in self._spans if each.trace == trace), key=lambda each: each.begin)

    def trace_of(self, request_id: str) -> list[Span]:
        """The spans of the trace that a request with this id belongs to."""
        with self._lock:
            traces = {each.trace for each in self._spans if each.attributes.get("triton.request_id") == request_id}
        return self.trace(traces.pop()) if traces else []


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port of this machine."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kind = self.headers["Content-Type"]
            right = self.path == "/v1/traces" and kind in (JSON, PROTOBUF)
            if right:
                receiver.take(body, kind)
            self.send_response(200 if right else 415)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b"{}" if kind == JSON else b"")

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def _document(body: bytes) -> dict[str, Any]:
    """A protobuf message in the form of OTLP's JSON, in which ids are hexadecimal."""
    message = ExportTraceServiceRequest.FromString(body)
    found = MessageToDict(message)
    spans = [span for resource in found["resourceSpans"] for scope in resource["scopeSpans"] for span in scope["spans"]]
    for span in spans:
        for name in ("traceId", "spanId", "parentSpanId"):
            span[name] = base64.b64decode(span.get(name, "")).hex()
    return found


def _span(service: str, span: dict[str, Any]) -> Span:
    return Span(
        service,
        span["name"],
        span["traceId"],
        span["spanId"],
        span.get("parentSpanId", ""),
        int(span["startTimeUnixNano"]),
        int(span["endTimeUnixNano"]),
        _values(span),
        tuple(each["name"] for each in span.get("events", ())),
    )


def _values(holder: dict[str, Any]) -> dict[str, str]:
    return {each["key"]: str(next(iter(each["value"].values()))) for each in holder.get("attributes", ())}
