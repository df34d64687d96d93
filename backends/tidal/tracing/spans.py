"""The spans of an ended request: one of the request, and in it `queued`, `executed` and `answered`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tidal.access_log.record import BatchRun, RequestRecord

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("tidal")
_MAX_TEXT_CHARS = 256
# Codes of errors that are the server's, not the request's.
_SERVER_ERRORS = ("INTERNAL", "UNAVAILABLE")


class SpanBuilder:
    """Builds the spans of one model's requests.

    Args:
        resource: Resource of the process.
        system: Name of the backend.
        model: Name of the model.
        version: Version of the model.
    """

    def __init__(self, resource: Resource, system: str, model: str, version: int) -> None:
        self._resource = resource
        self._name = f"{system} {model}"
        self._attributes = {"tidal.system": system, "tidal.model": model, "tidal.version": version}

    def spans(self, record: RequestRecord, code: str, answered: float, since_epoch_ns: int) -> list[ReadableSpan]:
        """Return the spans of a request, its own first.

        Args:
            record: Record of the request, which has a span.
            code: `OK` or the code of the error.
            answered: Time of the answer, by `time.monotonic()`, in seconds.
            since_epoch_ns: Time of the epoch of `time.monotonic()`, in nanoseconds since 1970.
        """
        assert record.span is not None
        own = _context(record.span.trace_id, record.span.span_id)
        parent = None if record.parent is None else _context(record.parent.trace_id, record.parent.span_id, remote=True)

        def made(
            name: str,
            began: float,
            ended: float,
            attributes: Mapping[str, Any],
            *,
            context: SpanContext | None = None,
            kind: SpanKind = SpanKind.INTERNAL,
            status: Status | None = None,
        ) -> ReadableSpan:
            return ReadableSpan(
                name,
                context or _context(own.trace_id, random.getrandbits(64) or 1),
                parent if context is not None else own,
                self._resource,
                attributes,
                kind=kind,
                instrumentation_scope=_SCOPE,
                status=status or Status(StatusCode.UNSET),
                start_time=since_epoch_ns + round(began * 1e9),
                end_time=since_epoch_ns + round(max(began, ended) * 1e9),
            )

        began = answered if record.began is None else min(record.began, answered)
        ended = began if record.ended is None else min(record.ended, answered)
        found = [
            made(
                self._name,
                record.arrival,
                answered,
                {**self._attributes, **_attributes(record), "tidal.code": code, **_failed(code)},
                context=own,
                kind=SpanKind.INTERNAL if record.from_model else SpanKind.SERVER,
                status=Status(StatusCode.ERROR) if code in _SERVER_ERRORS else None,
            )
        ]
        if record.rows is None:  # refused before anything was queued
            return found
        shared = {"tidal.model": self._attributes["tidal.model"], **_task(record)}
        found.append(made("queued", record.arrival, began, shared))
        if record.began is None:
            return found
        for batch in _batches(record, began, ended):
            facts = {f"tidal.{name}": value for name, value in batch.facts.items()}
            own_facts = {**shared, **_tokens(record), "tidal.batch_rows": batch.rows, **facts}
            found.append(made("executed", batch.began, min(batch.ended, answered), own_facts))
        found.append(made("answered", ended, answered, shared))
        return found


def _batches(record: RequestRecord, began: float, ended: float) -> list[BatchRun]:
    """Return the batches to show; one for all steps of a generation, whose batches change with each."""
    batches = [each for each in record.batches if each.ended > each.began]
    return batches or [BatchRun(began, ended, record.batch_rows, {})]


def _context(trace_id: int, span_id: int, *, remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, remote, _SAMPLED)


def _attributes(record: RequestRecord) -> dict[str, Any]:
    found: dict[str, Any] = {**_task(record), **_tokens(record)}
    if record.rows is not None:
        found["tidal.rows"] = record.rows
    if record.request_id:
        found["tidal.request_id"] = _text(record.request_id)
    for name, value in record.facts.items():
        found["gen_ai.usage.output_tokens" if name == "generated_tokens" else f"tidal.{name}"] = value
    return found


def _task(record: RequestRecord) -> dict[str, Any]:
    return {} if record.task is None else {"tidal.task": _text(record.task)}


def _tokens(record: RequestRecord) -> dict[str, Any]:
    return {} if record.tokens is None else {"gen_ai.usage.input_tokens": record.tokens}


def _text(value: str) -> str:
    """Return a client's text without lone surrogates, which protobuf does not accept."""
    return value[:_MAX_TEXT_CHARS].encode("utf-8", "replace").decode()


def _failed(code: str) -> dict[str, str]:
    return {} if code == "OK" else {"error.type": code}
