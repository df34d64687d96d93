"""Parameters of a request as Triton passes them: one JSON object, whose size is checked before it is parsed."""

from __future__ import annotations

import json
from typing import Any

from tidal.errors import InvalidArgument
from tidal.options import CODED_ERRORS, MAX_OPTIONS_CHARS


def read_parameters(raw: Any) -> dict[str, Any]:
    """Return the parameters of a Triton request by name; empty if it has none.

    Raises:
        InvalidArgument: They are longer than any accepted options can be.
    """
    text = raw.parameters()
    if not text or text == "{}":
        return {}
    if len(text) > MAX_OPTIONS_CHARS:
        raise InvalidArgument(
            f"the request's options have {len(text)} characters as JSON; accepted are at most {MAX_OPTIONS_CHARS}"
        )
    parameters: dict[str, Any] = json.loads(text)
    return parameters


def has_parameter(raw: Any, name: str) -> bool:
    """Whether a Triton request has a parameter of a name that JSON does not escape.

    Does not parse the parameters, which may have any length here. Quotes inside texts are escaped, so only names match.
    """
    return f'"{name}":' in (raw.parameters() or "")


def wants_coded_errors(raw: Any) -> bool:
    """Whether an error message for this request has to contain the code, see `tidal.serving.coded_errors`."""
    return has_parameter(raw, CODED_ERRORS)
