"""Traces of the requests of one model: where their spans belong, and when they end."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING

from tidal.access_log.record import RequestRecord
from tidal.options import TraceParent
from tidal.tracing.settings import INSTALL, is_installed, traces_url

if TYPE_CHECKING:
    from tidal.tracing.exporter import SpanExport


class Tracing:
    """Begins and ends the traces of requests; any thread may call it.

    A request's spans are built when it has ended, in the thread that exports them: in its own path it costs an id, a
    few attributes and a place in a queue.

    Args:
        export: Exports the spans.
    """

    def __init__(self, export: SpanExport) -> None:
        self._export = export

    def begin(self, record: RequestRecord, parent: TraceParent | None) -> None:
        """Give a request its place in a trace.

        Args:
            record: Record of the request.
            parent: Span of the caller, which decides whether the spans are exported; None to begin a trace.
        """
        record.parent = parent
        span_id = random.getrandbits(64) or 1
        if parent is None:
            trace_id = random.getrandbits(128) or 1
            record.span = TraceParent(trace_id, span_id, self._export.samples(trace_id))
        else:
            record.span = TraceParent(parent.trace_id, span_id, parent.sampled)

    def end(self, record: RequestRecord, code: str, answered: float) -> None:
        """Export the spans of an answered request; returns at once.

        Args:
            record: Record of the request.
            code: `OK` or the code of the error.
            answered: Time of the answer, by `time.monotonic()`, in seconds.
        """
        if record.span is not None and record.span.sampled:
            self._export.put(record, code, answered, time.time_ns() - time.monotonic_ns())

    def close(self) -> None:
        """Export the last spans within 2 s."""
        self._export.close()


def open_tracing(system: str, model: str, version: int, log: logging.Logger) -> Tracing | None:
    """Return the traces that the environment configures; None if it configures none.

    Args:
        system: Name of the backend.
        model: Name of the model.
        version: Version of the model.
        log: Logger of the model.
    """
    url = traces_url()
    if url is None:
        return None
    if not is_installed():
        log.warning(f"requests are not traced: this requires packages of OpenTelemetry: {INSTALL}")
        return None
    from tidal.tracing.exporter import SpanExport

    return Tracing(SpanExport(url, system, model, version, log))
