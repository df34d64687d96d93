"""Spans of ended requests at a receiver, and receivers that fail."""

from __future__ import annotations

import logging
import socket
import time

import pytest

from testing.waiting import until
from tests.deploy.otlp import receiving
from tidal.access_log.record import RequestRecord
from tidal.options import TraceParent
from tidal.tracing.tracing import Tracing, open_tracing

_LOG = logging.getLogger("tests.tracing")
PARENT = TraceParent(0xAB, 0xCD, True)


def opened(monkeypatch: pytest.MonkeyPatch, url: str) -> Tracing:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    found = open_tracing("arlo", "tiny", 1, _LOG)
    assert found is not None
    return found


def test_the_spans_of_a_request_with_two_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    with receiving() as receiver:
        tracing = opened(monkeypatch, receiver.url)
        record = RequestRecord("id\ud800", now - 0.5, rows=3, task="mood")
        tracing.begin(record, PARENT)
        record.tokens = 7
        for _ in range(2):  # once for each row
            record.ran(now - 0.4, now - 0.3, 8, max_length=16)
        record.ran(now - 0.2, now - 0.1, 2, max_length=64)
        tracing.end(record, "OK", now)
        unsampled = RequestRecord("", now, rows=1)
        tracing.begin(unsampled, TraceParent(0xEE, 1, False))
        tracing.end(unsampled, "OK", now)
        tracing.close()
        own, queued, first, second, answered = receiver.trace(f"{0xAB:032x}")
        assert receiver.trace(f"{0xEE:032x}") == []
    assert record.span is not None
    assert (own.name, own.parent, own.span) == ("arlo tiny", f"{0xCD:016x}", f"{record.span.span_id:016x}")
    parts = [queued, first, second, answered]
    assert [each.name for each in parts] == ["queued", "executed", "executed", "answered"]
    assert {each.parent for each in parts} == {own.span}
    lasted = [round((each.end - each.begin) / 1e8) for each in (own, *parts)]
    assert lasted == [5, 1, 1, 1, 1]
    assert [each.attributes["tidal.batch_rows"] for each in (first, second)] == ["8", "2"]
    assert [each.attributes["tidal.max_length"] for each in (first, second)] == ["16", "64"]
    assert first.attributes["tidal.task"] == own.attributes["tidal.task"] == "mood"
    assert own.attributes["tidal.request_id"] == "id?"
    assert abs(own.end / 1e9 - time.time()) < 60


def test_a_refused_request_has_one_span(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        tracing = opened(monkeypatch, receiver.url)
        record = RequestRecord("", time.monotonic())
        tracing.begin(record, PARENT)
        tracing.end(record, "INVALID_ARG", time.monotonic())
        tracing.close()
        (own,) = receiver.trace(f"{0xAB:032x}")
    assert own.attributes["error.type"] == own.attributes["tidal.code"] == "INVALID_ARG"


def test_an_unreachable_receiver_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
        tracing = opened(monkeypatch, f"http://127.0.0.1:{taken.getsockname()[1]}")
        for _ in range(5000):  # more than may wait
            record = RequestRecord("", time.monotonic(), rows=1)
            tracing.begin(record, None)
            tracing.end(record, "OK", time.monotonic())
        assert until(lambda: "spans cannot be sent to" in caplog.text)
        tracing.close()
    assert caplog.text.count("spans cannot be sent to") == 1
