"""Arrival processes: arrays of times in seconds from the start of a run, ascending.

The caller gives either the number of arrivals (`count`) or the duration (`seconds`). Equal seeds give equal times, so
every system under test receives the same load.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tidal_client.errors import InvalidArgument

#: Arrival times in seconds, ascending, [requests].
Times = npt.NDArray[np.float64]


def poisson(rate: float, *, count: int | None = None, seconds: float | None = None, seed: int = 0) -> Times:
    """Return arrivals of a Poisson process.

    Args:
        rate: Requests per second.
        count: Number of arrivals.
        seconds: Duration in seconds, instead of `count`.
        seed: Seed; for equal seeds, half the rate gives the same times twice as far apart.

    Raises:
        InvalidArgument: A number is out of range, or not exactly one of `count` and `seconds` is given.
    """
    _check(rate, count, seconds)
    return _unit_process(None if seconds is None else seconds * rate, count, np.random.default_rng(seed)) / rate


def bursty(
    rate: float,
    *,
    burst_factor: float,
    burst_s: float,
    burst_share: float,
    count: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
) -> Times:
    """Return arrivals of a Markov-modulated Poisson process that alternates between bursts and lulls.

    Durations of bursts and lulls are exponentially distributed. The rate in lulls keeps the mean at `rate`; the mean
    of a finite run differs with the share of bursts in it (see `rescaled`).

    Args:
        rate: Mean requests per second.
        burst_factor: Rate within a burst relative to the mean rate, from 1 to 1 / `burst_share`; at the upper limit
            nothing arrives in lulls.
        burst_s: Mean duration of a burst, in seconds.
        burst_share: Share of the time that is bursts, between 0 and 1.
        count: Number of arrivals.
        seconds: Duration in seconds, instead of `count`.
        seed: Seed; equal seeds give equal times.

    Raises:
        InvalidArgument: A number is out of range, or not exactly one of `count` and `seconds` is given.
    """
    _check(rate, count, seconds)
    _positive("burst seconds", burst_s)
    if not 0 < burst_share < 1:
        raise InvalidArgument(f"burst share: expected a number between 0 and 1, got {burst_share:g}")
    if not 1 <= burst_factor <= 1 / burst_share:
        raise InvalidArgument(
            f"burst factor: expected 1 to {1 / burst_share:g} (1 / burst share), got {burst_factor:g}"
        )
    rng = np.random.default_rng(seed)
    rates = (rate * (1 - burst_share * burst_factor) / (1 - burst_share), rate * burst_factor)
    lengths = (burst_s * (1 - burst_share) / burst_share, burst_s)
    in_burst = bool(rng.random() < burst_share)
    # A Poisson process of rate 1 is mapped through the expected number of arrivals, which is linear within each burst
    # and each lull.
    moments, expected = [0.0], [0.0]
    while (moments[-1] < seconds) if seconds is not None else (expected[-1] < _ample(count or 0)):
        length = float(rng.exponential(lengths[in_burst]))
        moments.append(moments[-1] + length)
        # At the largest factor nothing arrives in lulls; an epsilon keeps the function invertible.
        expected.append(expected[-1] + max(length * rates[in_burst], 1e-12))
        in_burst = not in_burst
    upto = None if seconds is None else float(np.interp(seconds, moments, expected))
    return np.asarray(np.interp(_unit_process(upto, count, rng), expected, moments), np.float64)


def rescaled(times: Times, rate: float) -> Times:
    """Scale arrivals to a mean rate, starting at 0.

    Args:
        times: Arrival times in seconds, ascending, [requests].
        rate: Requests per second.

    Raises:
        InvalidArgument: The rate is not positive, or there are fewer than two different times.
    """
    _positive("rate", rate)
    if len(times) < 2 or times[-1] <= times[0]:
        raise InvalidArgument("arrivals: expected at least two different times to rescale to a rate")
    return np.asarray((times - times[0]) * ((len(times) - 1) / (times[-1] - times[0]) / rate))


def mean_rate(times: Times) -> float:
    """Return requests per second from the first arrival to the last; 0 for fewer than two."""
    span = float(times[-1] - times[0]) if len(times) > 1 else 0.0
    return (len(times) - 1) / span if span > 0 else 0.0


def _unit_process(upto: float | None, count: int | None, rng: np.random.Generator) -> Times:
    """Return a Poisson process of rate 1: `count` arrivals, or all before `upto`."""
    if upto is None:
        return np.cumsum(rng.exponential(1.0, count))
    times = np.cumsum(rng.exponential(1.0, math.ceil(_ample(upto))))
    while times[-1] < upto:
        times = np.concatenate([times, times[-1] + np.cumsum(rng.exponential(1.0, len(times)))])
    return np.asarray(times[times < upto])


def _ample(expected: float) -> float:
    """Return a number that a Poisson variable of this mean practically never exceeds."""
    return expected + 12 * math.sqrt(expected + 1) + 50


def _check(rate: float, count: int | None, seconds: float | None) -> None:
    _positive("rate", rate)
    if (count is None) == (seconds is None):
        raise InvalidArgument("arrivals: expected either a count or seconds")
    if count is not None and count < 1:
        raise InvalidArgument(f"count: expected at least 1, got {count}")
    if seconds is not None:
        _positive("seconds", seconds)


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise InvalidArgument(f"{name}: expected a number above 0, got {value:g}")
