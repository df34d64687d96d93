"""Parsing the options of `tidal simulate`. Every error names its option."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidal.arlo.manifest import load_arlo_manifest
from tidal.errors import InvalidArgument
from tidal.simulator.arlo import TWEETS, ServiceTimes, from_profile, read_table, scaled_lengths
from tidal.simulator.traces import read_lengths, read_rates


def service_times(profile: Path, runtimes: str | None) -> ServiceTimes:
    """Read latencies.

    Args:
        profile: CSV table, or folder of a published version.
        runtimes: Input lengths of other runtimes in tokens, such as `128,256`; None for those of the profile.
    """
    if profile.is_dir():
        manifest = load_arlo_manifest(profile)
        times = from_profile(manifest.profile, [runtime.max_length for runtime in manifest.runtimes])
    else:
        times = read_table(profile)
    if runtimes is None:
        return times
    if not all(part.strip().isdecimal() for part in runtimes.split(",")):
        raise InvalidArgument(f"--runtimes '{runtimes}': expected lengths in tokens, for example 128,256,512")
    return times.of_runtimes([int(part) for part in runtimes.split(",")])


def rates_of(
    file: Path | None, columns: str | None, start: float, seconds: int | None, rate: float | None
) -> Sequence[float]:
    """Requests in each second.

    Args:
        file: Trace of rates; None for a constant rate.
        columns: Names of its two columns; None for the usual ones.
        start: Second of the trace at which to start.
        seconds: Number of seconds; None for the whole trace.
        rate: Mean requests per second, to which a trace is scaled; None keeps the trace.
    """
    if rate is not None and not 0 < rate < float("inf"):
        raise InvalidArgument(f"--rate must be a positive number of requests per second, got {rate:g}")
    if file is None:
        if rate is None:
            raise InvalidArgument("--rate is missing; give it, or a trace by --rates or --requests")
        return [rate] * (seconds or 600)
    trace = read_rates(file, columns_of(columns, ("second", "requests")), start_s=start, seconds=seconds)
    if rate is None:
        return trace
    mean = sum(trace) / len(trace)
    if not mean:
        raise InvalidArgument(f"--rate: this part of {file} has no requests to scale")
    return [each * rate / mean for each in trace]


def lengths_of(description: str, stretch: int | None, longest: int) -> tuple[list[int], list[float]]:
    """Input lengths in tokens and their weights.

    Args:
        description: Value of --lengths.
        stretch: Length that is scaled to `longest`; None for 125 of tweets and no scaling otherwise.
        longest: Input length of the longest runtime, in tokens.
    """
    lengths, weights = read_lengths(description)
    if stretch is None and description == TWEETS:
        stretch = 125
    return (lengths if stretch is None else scaled_lengths(lengths, stretch, longest)), weights


def columns_of(given: str | None, usual: tuple[str, str]) -> tuple[str, str]:
    """Names of two columns: the given ones, else the usual ones."""
    if given is None:
        return usual
    names = given.split(",")
    if len(names) != 2:
        raise InvalidArgument(f"--columns '{given}': expected two names separated by a comma")
    return names[0], names[1]


def bounds_of(text: str) -> tuple[int, int]:
    """The two numbers of MIN-MAX."""
    parts = text.split("-")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise InvalidArgument(f"--autoscale '{text}': expected MIN-MAX, for example 2-12")
    return int(parts[0]), int(parts[1])
