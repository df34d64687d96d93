"""Errors of the gateway: an HTTP status with one sentence, in which each API writes its own shape."""

from __future__ import annotations

import re
from typing import Final

import tidal.errors
import tidal_client.errors as client


class Refusal(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        message: One sentence: what is wrong, the value received, what is accepted, what to do.
        code: Short name of the error, such as ``model_not_found``.
        param: Name of the field that is wrong; None for none.
        retry_after_s: Seconds after which a retry may succeed; None for no such time.
        retry: Whether sending the same request again can help.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after_s: int | None = None,
        retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after_s, self.retry = retry_after_s, retry

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the response: `Retry-After`, and what the `openai` library reads."""
        found = []
        if self.retry_after_s is not None:
            found.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.retry is not None:
            found.append((b"x-should-retry", b"true" if self.retry else b"false"))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        return found


def invalid(message: str, param: str | None = None) -> Refusal:
    """Return the refusal of a request that is wrong by itself."""
    return Refusal(400, message, code="invalid_request", param=param)


# Unavailable covers overload, missed deadlines and reloads; only the sentence differs.
_DEADLINE: Final = re.compile(r"\bdeadline of\b")
_FULL: Final = re.compile(r"\bmax_queue_size\b|Exceeds maximum queue size")

_NO_MODEL: Final = re.compile(r"\bunknown model\b", re.IGNORECASE)

_STATUS: Final[tuple[tuple[type[Exception], int, str], ...]] = (
    (client.InvalidArgument, 400, "invalid_request"),
    (client.NotFound, 404, "not_found"),
    (client.Cancelled, 499, "cancelled"),
    (client.Unsupported, 400, "unsupported"),
    (client.DeadlineExceeded, 504, "timeout"),
    (client.ConnectionFailed, 503, "unavailable"),
    (client.Unavailable, 503, "unavailable"),
    (client.ServerError, 500, "server_error"),
)


def is_full(error: client.Unavailable) -> bool:
    """Whether a model refused a request because its queue is full."""
    return _FULL.search(str(error)) is not None


def refusal_of(error: Exception) -> Refusal:
    """Return the refusal for an error of a call to a server, or of Tidal's checks."""
    if isinstance(error, Refusal):
        return error
    message = str(error)
    if isinstance(error, tidal.errors.InvalidArgument):
        return invalid(message)
    if isinstance(error, client.Unavailable):
        if _DEADLINE.search(message):
            return Refusal(504, message, code="deadline", retry=False)
        if is_full(error):
            return Refusal(429, message, code="overloaded", retry_after_s=1)
        return Refusal(503, message, code="unavailable", retry_after_s=1)
    if isinstance(error, client.NotFound) and _NO_MODEL.search(message):
        return Refusal(404, message, code="model_not_found", param="model")
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            return Refusal(status, message, code=code)
    return Refusal(500, "the gateway failed; its log has the reason", code="server_error")
