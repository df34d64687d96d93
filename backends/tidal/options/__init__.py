"""Options of a request, which clients send as Triton request parameters; imports errors only."""

from tidal.options.request import CODED_ERRORS, FROM_MODEL, MAX_OPTIONS_CHARS, RequestOptions, parse_options
from tidal.options.traceparent import TRACEPARENT_NAMES, TraceParent, parse_traceparent, split_traceparent

__all__ = [
    "CODED_ERRORS",
    "FROM_MODEL",
    "MAX_OPTIONS_CHARS",
    "TRACEPARENT_NAMES",
    "RequestOptions",
    "TraceParent",
    "parse_options",
    "parse_traceparent",
    "split_traceparent",
]
