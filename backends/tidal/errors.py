"""Errors that a client or an operator sees, each with the code that Triton reports for it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar, Literal

ErrorCode = Literal["INVALID_ARG", "NOT_FOUND", "UNAVAILABLE", "CANCELLED", "UNSUPPORTED", "INTERNAL"]


class TidalError(Exception):
    """An error whose message is one sentence for the person who has to act on it."""

    code: ClassVar[ErrorCode] = "INTERNAL"


class InvalidArgument(TidalError):
    """A request, option, parameter or file that cannot be accepted; says what was wrong and what is accepted."""

    code = "INVALID_ARG"


class NotFound(TidalError):
    """A named thing that does not exist."""

    code = "NOT_FOUND"


class Unavailable(TidalError):
    """Overload, a missed deadline or a model that is leaving; the same request may succeed later."""

    code = "UNAVAILABLE"


class Cancelled(TidalError):
    """The client withdrew the request."""

    code = "CANCELLED"


class Unsupported(TidalError):
    """Something that this model, engine or device does not offer."""

    code = "UNSUPPORTED"


class Internal(TidalError):
    """A failure inside Tidal; the request was well formed."""

    code = "INTERNAL"


# Comparing takes time in the square of the length: names of a client have none of their own.
_MAX_COMPARED_CHARS = 200


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """End of a sentence that names the accepted values, the nearest to `name` first.

    Returns for example ``did you mean 'latency_ms'? accepted: latency_ms, task``.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name[:_MAX_COMPARED_CHARS], names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"{hint}accepted: {', '.join(names) if names else 'none'}"
