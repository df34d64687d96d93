"""W3C trace contexts: which are accepted, and how they are separated from a request's other parameters."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tidal.options import RequestOptions, TraceParent, parse_options, parse_traceparent, split_traceparent
from tidal_client.options import request_parameters

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_a_context_is_read_and_written() -> None:
    found = parse_traceparent(GOOD)
    assert found == TraceParent(int(TRACE, 16), int(SPAN, 16), True)
    assert found is not None
    assert found.header() == GOOD
    unsampled = parse_traceparent(GOOD[:-2] + "00")
    assert unsampled is not None
    assert not unsampled.sampled


MALFORMED = [
    "", "nonsense", GOOD.upper(), GOOD[:-1], GOOD + "-more", f" {GOOD}", GOOD + "\n", f"ff-{TRACE}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-0x",
    5, None, True,
]  # fmt: skip


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_one_is_no_context(value: Any) -> None:
    assert parse_traceparent(value) is None


@pytest.mark.parametrize("value", [GOOD, f"01-{TRACE}-{SPAN}-03", f"42-{TRACE}-{SPAN}-01-what-comes", *MALFORMED[:12]])
def test_the_same_ones_are_accepted_as_by_opentelemetry(value: str) -> None:
    if value != value.strip():  # which a header never has
        return
    context = get_current_span(TraceContextTextMapPropagator().extract({"traceparent": value})).get_span_context()
    found = parse_traceparent(value)
    assert (found is not None) == context.is_valid
    if found is not None:
        assert found == (context.trace_id, context.span_id, context.trace_flags.sampled)


NAMES = st.text(st.sampled_from('"\\traceparent:,x'), max_size=14) | st.sampled_from(
    ["task", "xtraceparent", "Traceparent"]
)
VALUES = st.text(st.sampled_from('"\\traceparent:,{}x0-'), max_size=30) | st.integers() | st.booleans()


@given(st.dictionaries(NAMES.filter(lambda name: name.lower() != "traceparent"), VALUES, max_size=4), st.data())
def test_other_parameters_stay_as_they_are(others: dict[str, Any], data: st.DataObject) -> None:
    """Also where their texts have the name in them: requests share a text only if they differ in the context alone."""
    sent = data.draw(st.sampled_from([None, GOOD, 'a"b\\', 7]))
    items = list(others.items())
    if sent is not None:
        name = data.draw(st.sampled_from(["traceparent", "Traceparent"]))
        items.insert(data.draw(st.integers(0, len(items))), (name, sent))
    text = json.dumps(dict(items), separators=(",", ":"))
    rest, value = split_traceparent(text)
    assert parse_traceparent(value) == parse_traceparent(sent)
    if sent is None:
        assert rest == text
    else:
        assert json.loads(rest.removesuffix(",}") + "}" if rest.endswith(",}") else rest) == others


def test_it_is_no_option() -> None:
    assert parse_options({"traceparent": "nonsense", "task": "a"}) == RequestOptions(task="a")
    assert parse_options({"Traceparent": 5}) == RequestOptions()


class TestClient:
    def test_passes_the_current_span_on(self) -> None:
        tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
        assert "traceparent" not in request_parameters({})
        with tracer.start_as_current_span("caller") as span:
            context = span.get_span_context()
            expected = f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
            assert request_parameters({})["traceparent"] == expected
            assert request_parameters({"traceparent": GOOD})["traceparent"] == GOOD
        assert trace.get_current_span().get_span_context().is_valid is False


def test_opentelemetry_is_imported_only_while_it_is_on() -> None:
    code = (
        "import sys, logging; from tidal.tracing.tracing import open_tracing; from tidal_client import Client\n"
        "found = open_tracing('arlo', 'tiny', 1, logging.getLogger())\n"
        "sys.exit(found is not None or any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    )
    for environment in ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, {"OTEL_TRACES_EXPORTER": "none"}):
        assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
