"""Demand by runtime from the lengths of past requests."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence

from tidal.errors import InvalidArgument


def demand_by_runtime(
    requests_by_length: Mapping[int, float], max_lengths: Sequence[int], *, observed_s: float, slo_s: float
) -> tuple[float, ...]:
    """Return the mean number of requests per SLO period, by the shortest runtime that fits them (Q_i).

    Args:
        requests_by_length: Observed requests by length in tokens, or by the upper bounds of histogram buckets, if each
            runtime's `max_length` is one of them.
        max_lengths: The runtimes' `max_length` in tokens, ascending.
        observed_s: Observation time, in seconds.
        slo_s: Latency objective, in seconds.

    Raises:
        InvalidArgument: A length exceeds all runtimes, a count is negative, or a time is not positive.
    """
    for name, value in (("observed_s", observed_s), ("slo_s", slo_s)):
        if not 0 < value < math.inf:
            raise InvalidArgument(f"{name} must be a positive, finite number of seconds, got {value}")
    if not max_lengths or any(b <= a for a, b in itertools.pairwise(max_lengths)):
        raise InvalidArgument(f"max_lengths must be ascending and not empty, got {tuple(max_lengths)}")
    counts = [0.0] * len(max_lengths)
    for length, count in requests_by_length.items():
        if not 1 <= length <= max_lengths[-1]:
            raise InvalidArgument(f"a length must be between 1 and {max_lengths[-1]} tokens, got {length}")
        if not 0 <= count < math.inf:
            raise InvalidArgument(f"the count of length {length} must be a number of requests, got {count}")
        counts[bisect.bisect_left(max_lengths, length)] += count
    return tuple(count * (slo_s / observed_s) for count in counts)
