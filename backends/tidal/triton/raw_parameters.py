"""The parameters of a request as Triton delivers them: one JSON object, bounded before it is parsed."""

from __future__ import annotations

import json
from typing import Any

from tidal.errors import InvalidArgument
from tidal.options import CODED_ERRORS, MAX_OPTIONS_CHARS


def read_parameters(raw: Any) -> dict[str, Any]:
    """Parameter name to value of a Triton request; empty when it has none.

    Raises:
        InvalidArgument: they are longer than any accepted options can be.
    """
    text = raw.parameters()
    if not text:
        return {}
    if len(text) > MAX_OPTIONS_CHARS:
        raise InvalidArgument(
            f"the request's options have {len(text)} characters as JSON; accepted are at most {MAX_OPTIONS_CHARS}"
        )
    parameters: dict[str, Any] = json.loads(text)
    return parameters


def has_parameter(raw: Any, name: str) -> bool:
    """Whether a Triton request has a parameter of this name, which needs no escapes in JSON.

    Parses nothing, since the parameters may be of any length here: quotes inside of texts are escaped, so only a name
    matches.
    """
    return f'"{name}":' in (raw.parameters() or "")


def wants_coded_errors(raw: Any) -> bool:
    """Whether an error of this request must say its code, see `tidal.triton.coded_errors`."""
    return has_parameter(raw, CODED_ERRORS)
