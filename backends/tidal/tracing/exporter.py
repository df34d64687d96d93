"""Export of spans over OTLP in a background thread; the only module that imports OpenTelemetry."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import SpanContext, TraceFlags

from tidal.access_log.record import RequestRecord
from tidal.tracing.spans import SpanBuilder

_LAST_SPANS_S = 2.0
_SAMPLED = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
# Loggers of OpenTelemetry that report each export that fails, which `_RequestExporter` does once.
_NOISY = ("opentelemetry.exporter.otlp", "opentelemetry.sdk._shared_internal", "urllib3.connectionpool")


class SpanExport:
    """Sends the spans of ended requests; at most 2048 requests wait, and the oldest are dropped beyond.

    OpenTelemetry's variables `OTEL_BSP_*`, `OTEL_EXPORTER_OTLP_*`, `OTEL_TRACES_SAMPLER*`, `OTEL_SERVICE_NAME` and
    `OTEL_RESOURCE_ATTRIBUTES` apply.

    Args:
        url: URL of the receiver.
        system: Name of the backend.
        model: Name of the model.
        version: Version of the model.
        log: Logger of the model, for failures of the receiver.
    """

    def __init__(self, url: str, system: str, model: str, version: int, log: logging.Logger) -> None:
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._sampler = provider.sampler
        self._model = model
        self._exporter: SpanExporter = OTLPSpanExporter(endpoint=url)
        builder = SpanBuilder(provider.resource, system, model, version)
        self._processor = BatchSpanProcessor(_RequestExporter(self._exporter, builder, url, log))

    def samples(self, trace_id: int) -> bool:
        """Return whether a trace that begins here is exported.

        Args:
            trace_id: Id of the trace.
        """
        return self._sampler.should_sample(None, trace_id, self._model).decision is Decision.RECORD_AND_SAMPLE

    def put(self, record: RequestRecord, code: str, answered: float, since_epoch_ns: int) -> None:
        """Queue an ended request; returns at once.

        Args:
            record: Record of the request, which has a span.
            code: `OK` or the code of the error.
            answered: Time of the answer, by `time.monotonic()`, in seconds.
            since_epoch_ns: Time of the epoch of `time.monotonic()`, in nanoseconds since 1970.
        """
        self._processor.on_end(EndedRequest(record, code, answered, since_epoch_ns))

    def close(self) -> None:
        """Export what is queued within 2 s, and end the thread."""
        # A receiver that does not answer may hold the thread for longer, which ends with the process.
        closing = threading.Thread(target=self._processor.shutdown, name="tracing-end", daemon=True)
        closing.start()
        closing.join(_LAST_SPANS_S)
        if closing.is_alive():
            self._exporter.shutdown()  # ends its pauses between attempts


class EndedRequest(ReadableSpan):
    """An ended request in the queue of spans, which the exporting thread replaces by its spans.

    Args:
        record: Record of the request.
        code: `OK` or the code of the error.
        answered: Time of the answer, by `time.monotonic()`, in seconds.
        since_epoch_ns: Time of the epoch of `time.monotonic()`, in nanoseconds since 1970.
    """

    context = _SAMPLED

    def __init__(self, record: RequestRecord, code: str, answered: float, since_epoch_ns: int) -> None:
        self.record = record
        self.code = code
        self.answered = answered
        self.since_epoch_ns = since_epoch_ns


class _RequestExporter(SpanExporter):
    """Builds the spans of requests and exports them; logs when exports begin to fail and when they succeed again."""

    def __init__(self, exporter: SpanExporter, builder: SpanBuilder, url: str, log: logging.Logger) -> None:
        self._exporter = exporter
        self._builder = builder
        self._url = url
        self._log = log
        self._failing = False
        self._reasons = _LastMessage()
        for name in _NOISY:
            logger = logging.getLogger(name)
            logger.propagate = False
            logger.addHandler(self._reasons)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        built: list[ReadableSpan] = []
        for each in spans:
            assert isinstance(each, EndedRequest)
            built += self._builder.spans(each.record, each.code, each.answered, each.since_epoch_ns)
        result = self._exporter.export(built)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            reason = self._reasons.text
            self._log.warning(f"spans cannot be sent to {self._url}: {reason}; they are dropped until they can be")
        elif self._failing and not failed:
            self._log.warning(f"spans are sent to {self._url} again")
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _LastMessage(logging.Handler):
    """Keeps the last message of OpenTelemetry's loggers."""

    text = "no answer"

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()[:300]


def _resource() -> Resource:
    found = Resource.create()
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return found if named else found.merge(Resource({SERVICE_NAME: "tidal"}))
