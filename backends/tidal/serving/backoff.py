"""Pauses before something that failed is tried again."""

from __future__ import annotations

# Larger powers of 2 overflow a float; every limit is reached long before.
_MAX_DOUBLINGS = 30


def backoff_s(retry: int, first_s: float, longest_s: float) -> float:
    """Return the pause before a retry: it doubles with each retry in a row, up to a limit.

    Args:
        retry: Number of retries in a row before this one, from 0.
        first_s: Pause before the first retry, in seconds.
        longest_s: Upper limit of the pause, in seconds.
    """
    return min(first_s * 2.0 ** min(retry, _MAX_DOUBLINGS), longest_s)
