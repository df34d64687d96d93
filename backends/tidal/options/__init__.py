"""Options of a request, which clients send as Triton request parameters; imports errors only."""

from tidal.options.request import CODED_ERRORS, FROM_MODEL, MAX_OPTIONS_CHARS, RequestOptions, parse_options

__all__ = ["CODED_ERRORS", "FROM_MODEL", "MAX_OPTIONS_CHARS", "RequestOptions", "parse_options"]
