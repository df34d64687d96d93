"""OpenTelemetry traces: the spans of a request, continued from its client and carried to the servers.

Nothing here is imported unless the setting `otlp_endpoint` is set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PATH: Final = "/v1/traces"
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_FLUSH_MS: Final = 3000


class Tracing:
    """Starts the trace of each request, and exports spans over OTLP in the background.

    Args:
        endpoint: URL of the receiver, with or without the path ``/v1/traces``.
        ratio: Share of the requests without a `traceparent` that are traced.
    """

    def __init__(self, endpoint: str, ratio: float) -> None:
        url = endpoint if endpoint.rstrip("/").endswith(_PATH) else endpoint.rstrip("/") + _PATH
        resource = Resource.create({SERVICE_NAME: "tidal-gateway"})
        self._provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(ratio)), resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self._tracer = self._provider.get_tracer("tidal_gateway")

    def begin(self, method: str, path: str, headers: Mapping[str, str]) -> RequestTrace:
        """Return the trace of a request that arrives; it continues the one that the headers name.

        Args:
            method: HTTP method.
            path: Path of the URL.
            headers: Headers by lower-case name.
        """
        parent = _PROPAGATOR.extract(headers)
        attributes = {"http.request.method": method, "url.path": path}
        span = self._tracer.start_span(method, parent, SpanKind.SERVER, attributes)
        return RequestTrace(self._tracer, span)

    def close(self) -> None:
        """Export the last spans."""
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()


class RequestTrace:
    """The spans of one request: `accepted`, `queued` and `executed` for each attempt, `answered`.

    Args:
        tracer: Tracer of the spans.
        span: Span of the whole request.
    """

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer, self._span = tracer, span
        self._context = set_span_in_context(span)
        self._accepted: Span | None = tracer.start_span("accepted", self._context)
        self._answered: Span | None = None

    @contextmanager
    def queued(self, model: str) -> Iterator[None]:
        """Trace the time until a server is chosen."""
        self._end_accepted()
        with self._part("queued", SpanKind.INTERNAL, {"tidal.model": model}):
            yield

    @contextmanager
    def executed(self, server: str, model: str, attempt: int, parameters: Any) -> Iterator[tuple[tuple[str, str], ...]]:
        """Trace a call to a server, and yield the gRPC metadata that continues the trace in tritonserver.

        Args:
            server: Address of the server.
            model: Name of the model.
            attempt: Number of attempts before this one.
            parameters: Parameters of the `ModelInferRequest`; gets the one that continues the trace in the model.
        """
        attributes = {"server.address": server, "tidal.model": model, "tidal.attempt": attempt}
        with self._part("executed", SpanKind.CLIENT, attributes) as span:
            carrier: dict[str, str] = {}
            _PROPAGATOR.inject(carrier, set_span_in_context(span))
            if (traceparent := carrier.get("traceparent")) is not None:
                parameters["traceparent"].string_param = traceparent
            yield tuple(carrier.items())

    def answer_begins(self) -> None:
        """Trace the time from now until `end`, in which the answer is sent."""
        self._end_accepted()
        if self._answered is None:
            self._answered = self._tracer.start_span("answered", self._context)

    def end(self, name: str, status: int, attributes: Mapping[str, str | int]) -> None:
        """End all spans of an answered request.

        Args:
            name: Name of the span of the whole request.
            status: HTTP status of the answer.
            attributes: Attributes of that span; empty ones and zeros are left out.
        """
        self._end_accepted()
        if self._answered is not None:
            self._answered.end()
        self._span.update_name(name)
        self._span.set_attributes({each: value for each, value in attributes.items() if value})
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()

    def _end_accepted(self) -> None:
        if self._accepted is not None:
            self._accepted.end()
            self._accepted = None

    @contextmanager
    def _part(self, name: str, kind: SpanKind, attributes: Mapping[str, Any]) -> Iterator[Span]:
        span = self._tracer.start_span(name, self._context, kind, attributes)
        try:
            yield span
        except BaseException as error:
            # The message may have words of the request.
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(StatusCode.ERROR)
            raise
        finally:
            span.end()
