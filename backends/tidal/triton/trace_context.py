"""Span that the spans of a request continue, from its parameters and from Triton's own trace of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tidal.options import TRACEPARENT_NAMES, TraceParent, parse_traceparent


def parameter_traceparent(parameters: Mapping[str, Any]) -> str:
    """Return the trace context among the parameters of a request; empty if it has none.

    Args:
        parameters: Parameters by name.
    """
    values = [parameters[name] for name in TRACEPARENT_NAMES if isinstance(parameters.get(name), str)]
    return values[-1] if values else ""


def caller(raw: Any, traceparent: str) -> TraceParent | None:
    """Return the span that a request's spans continue; None if they begin a trace. For traced models only.

    Where tritonserver traces the request as well, with `mode=opentelemetry`, that is its span of the request, which is
    inside the client's.

    Args:
        raw: Triton's request.
        traceparent: Value of the request's parameter, malformed or not; empty if it has none.
    """
    sent = parse_traceparent(traceparent)
    of_server = _of_server(raw)
    # A trace that the server began by itself is not the caller's.
    return sent if of_server is None or (sent is not None and sent.trace_id != of_server.trace_id) else of_server


def _of_server(raw: Any) -> TraceParent | None:
    trace = getattr(raw, "trace", None)  # not before Triton 24.05
    context = None if trace is None else trace().get_context()
    if not context:
        return None
    try:
        return parse_traceparent(json.loads(context).get("traceparent"))
    except (ValueError, AttributeError):
        return None
