"""Errors that clients and operators see, each with the code that Triton reports."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar, Literal

ErrorCode = Literal["INVALID_ARG", "NOT_FOUND", "UNAVAILABLE", "CANCELLED", "UNSUPPORTED", "INTERNAL"]


class TidalError(Exception):
    """Base of Tidal's errors; the message is one sentence for the person who has to act on it."""

    code: ClassVar[ErrorCode] = "INTERNAL"


class InvalidArgument(TidalError):
    """A request, option, parameter or file is not accepted; the message names the value and what is accepted."""

    code = "INVALID_ARG"


class NotFound(TidalError):
    """The named thing does not exist."""

    code = "NOT_FOUND"


class Unavailable(TidalError):
    """Overload, a missed deadline, or a model that is being unloaded; the same request may succeed later."""

    code = "UNAVAILABLE"


class Cancelled(TidalError):
    """The client cancelled the request."""

    code = "CANCELLED"


class Unsupported(TidalError):
    """The model, engine or device does not support the operation."""

    code = "UNSUPPORTED"


class Internal(TidalError):
    """A failure inside Tidal; the request was valid."""

    code = "INTERNAL"


# Comparing takes quadratic time, and a client's name may have any length.
_MAX_COMPARED_CHARS = 200


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the accepted name that is most similar, then all accepted names.

    Args:
        name: Name that is not accepted.
        known: Names that are accepted.

    Returns:
        For example ``did you mean 'latency_ms'? accepted: latency_ms, task``.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name[:_MAX_COMPARED_CHARS], names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"{hint}accepted: {', '.join(names) if names else 'none'}"
