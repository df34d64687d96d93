"""W3C trace context of a request, which travels as the request parameter `traceparent`."""

from __future__ import annotations

import re
from typing import NamedTuple

#: Names of the parameter: Triton passes a forwarded HTTP header on under the name that its client wrote.
TRACEPARENT_NAMES = ("traceparent", "Traceparent")
_PART = 'raceparent":'
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
# In parameters as one JSON object; quotes inside texts are escaped, so only a name has none before it.
_PARAMETER = re.compile(r'(?<!\\)"[tT]raceparent":("(?:[^"\\]|\\.)*"|[^",}]*),?')


class TraceParent(NamedTuple):
    """A span that other spans continue.

    Attributes:
        trace_id: Id of its trace, 128 bits, not 0.
        span_id: Id of the span, 64 bits, not 0.
        sampled: Whether the spans of the trace are exported.
    """

    trace_id: int
    span_id: int
    sampled: bool

    def header(self) -> str:
        """Return the value of a `traceparent` header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def parse_traceparent(value: object) -> TraceParent | None:
    """Return the span that a `traceparent` names; None if it is malformed, which W3C requires to be ignored.

    Args:
        value: Value of the header or parameter.
    """
    found = _HEADER.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & 1)) if trace_id and span_id else None


def split_traceparent(text: str) -> tuple[str, str]:
    """Separate the trace context from the parameters of a request, so that its other parameters can be cached.

    Args:
        text: Parameters as one JSON object without white space, as Triton passes them.

    Returns:
        The text without the parameter, which need not be JSON any more, and its value for `parse_traceparent`; empty if
        it has none. Of several, the last counts, which is a forwarded header.
    """
    value, at = "", 0
    while (at := text.find(_PART, at)) >= 0:
        found = _PARAMETER.match(text, at - 2) if at >= 2 else None
        if found is None:
            at += 1
        else:
            value, at = found[1].strip('"'), at - 2
            text = text[:at] + text[found.end() :]
    return text, value
