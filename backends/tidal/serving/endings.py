"""Errors that end a request before it has an answer: its deadline, its client, the model's unload, or a failure."""

from __future__ import annotations

from tidal.errors import Cancelled, Internal, TidalError, Unavailable
from tidal.requests import PendingRequest

# Checking for cancellation costs a call to the server process: too expensive for a request that hardly waited.
CHECK_CANCELLED_AFTER_S = 0.05


def cancellation(request: PendingRequest, now: float) -> Cancelled | None:
    """Return the error for a queued request that its client has cancelled, or None.

    The server is asked only about requests that have waited for `CHECK_CANCELLED_AFTER_S` seconds.

    Args:
        request: Request that is about to run.
        now: Current `time.monotonic()`, in seconds.
    """
    if now - request.arrival > CHECK_CANCELLED_AFTER_S and request.cancelled():
        return Cancelled("the client cancelled the request while it waited")
    return None


def missed_in_queue(request: PendingRequest, now: float, latency_ms: float | None = None) -> Unavailable:
    """Return the error for a queued request whose deadline can no longer be met.

    Args:
        request: Request that is refused.
        now: Current `time.monotonic()`, in seconds.
        latency_ms: Deadline in milliseconds after arrival; None: the request's option `latency_ms`.
    """
    allowed_ms = request.options.latency_ms if latency_ms is None else latency_ms
    waited_ms = (now - request.arrival) * 1e3
    return Unavailable(f"the deadline of {allowed_ms:g} ms cannot be met: {waited_ms:.0f} ms have passed in the queue")


def deadline_passed(latency_ms: float | None, before: str) -> Unavailable:
    """Return the error for a request whose deadline has passed.

    Args:
        latency_ms: Deadline, in milliseconds after arrival.
        before: Event that the deadline preceded, as the end of the sentence: `an answer`.
    """
    return Unavailable(f"the deadline of {latency_ms:g} ms passed before {before}")


def model_stops() -> Unavailable:
    """Return the error for a request that arrives while its model is being unloaded."""
    return Unavailable("the model is being unloaded; send the request again")


def failure(error: Exception, what: str) -> TidalError:
    """Return the error that a client gets for an exception: its own if it is a `TidalError`, else INTERNAL.

    Args:
        error: Exception that was caught.
        what: Part that failed, as the start of the sentence: `the engine failed`.
    """
    return error if isinstance(error, TidalError) else Internal(f"{what}: {error}")
