"""Latency of a query on each runtime, from a table or from a build's measurements."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tidal.errors import InvalidArgument
from tidal.profiles import LatencyProfile

_COLUMNS = "length, static_ms and, for DT, dynamic_ms"


@dataclass(frozen=True)
class ServiceTimes:
    """Latency of one query by runtime.

    Args:
        max_lengths: The runtimes' `max_length` in tokens, ascending.
        static_s: Latency of one query padded to each runtime, in seconds.
        dynamic_s: Latency of one unpadded query on a runtime with dynamic shapes, by its length from 0 to the longest,
            in seconds; None: not measured.
        profile: Latency by batch size, for polymorphic placement; None: only single queries were measured.

    Raises:
        InvalidArgument: The numbers of values differ, lengths do not ascend, or a time is not positive or falls.
    """

    max_lengths: tuple[int, ...]
    static_s: tuple[float, ...]
    dynamic_s: tuple[float, ...] | None = None
    profile: LatencyProfile | None = None

    def __post_init__(self) -> None:
        if (
            not self.max_lengths
            or self.max_lengths[0] < 1
            or any(b <= a for a, b in itertools.pairwise(self.max_lengths))
        ):
            raise InvalidArgument(f"lengths must be one or more ascending numbers of tokens, got {self.max_lengths}")
        for name, times in (("static", self.static_s), ("dynamic", self.dynamic_s)):
            if times is None:
                continue
            if len(times) != (len(self.max_lengths) if name == "static" else self.longest + 1):
                raise InvalidArgument(f"expected one {name} latency per length, got {len(times)}")
            if not all(0 < time < math.inf for time in times):
                raise InvalidArgument(f"{name} latencies must be positive and finite, got {times}")
            if name == "static" and any(b < a for a, b in itertools.pairwise(times)):
                raise InvalidArgument(f"static latencies must not fall as the length grows, got {times}")

    @property
    def longest(self) -> int:
        """Maximum length of a query, in tokens."""
        return self.max_lengths[-1]

    def of_runtimes(self, max_lengths: Sequence[int]) -> ServiceTimes:
        """Return the latencies of the same model compiled for other lengths.

        Args:
            max_lengths: Lengths in tokens; one between known lengths costs as much as the next longer known one.

        Raises:
            InvalidArgument: A length exceeds the longest known one.
        """
        known = np.asarray(self.max_lengths)
        if not max_lengths or max(max_lengths) > self.longest:
            raise InvalidArgument(
                f"runtimes must be one or more lengths of at most {self.longest} tokens, got {max_lengths}"
            )
        static = tuple(self.static_s[i] for i in np.searchsorted(known, max_lengths).tolist())
        dynamic = None if self.dynamic_s is None else self.dynamic_s[: max(max_lengths) + 1]
        return ServiceTimes(tuple(max_lengths), static, dynamic, self.profile)


def from_profile(profile: LatencyProfile, max_lengths: Sequence[int]) -> ServiceTimes:
    """Return the latencies that a build measured, for the runtimes of its manifest."""
    static = tuple(profile.latency_ms(length) / 1e3 for length in max_lengths)
    return ServiceTimes(tuple(max_lengths), static, profile=profile)


def read_table(file: Path) -> ServiceTimes:
    """Read latencies from CSV with a header and the columns `length`, `static_ms` and optionally `dynamic_ms`.

    Dynamic latencies are interpolated linearly between rows, and constant below the first.

    Raises:
        InvalidArgument: The file cannot be read, or its content is invalid; the message names the row.
    """
    rows: list[list[float]] = []
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            names = [name for name in ("length", "static_ms", "dynamic_ms") if name in (reader.fieldnames or ())]
            if names[:2] != ["length", "static_ms"]:
                raise InvalidArgument(f"latency table {file}: expected the columns {_COLUMNS}, got {reader.fieldnames}")
            for row in reader:
                try:
                    rows.append([float(row[name]) for name in names])
                    if not rows[-1][0].is_integer():
                        raise ValueError
                except (TypeError, ValueError):
                    values = [row[name] for name in names]
                    raise InvalidArgument(
                        f"latency table {file}, row {reader.line_num}: expected a number for each of {names}, "
                        f"got {values}"
                    ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"latency table {file}: cannot be read: {error}") from None
    lengths = tuple(int(row[0]) for row in rows)
    static, dynamic = (tuple(row[i] / 1e3 for row in rows if len(row) > i) for i in (1, 2))
    try:
        times = ServiceTimes(lengths, static)
        by_length = np.interp(np.arange(times.longest + 1), lengths, dynamic) if dynamic else None
        return replace(times, dynamic_s=None if by_length is None else tuple(by_length.tolist()))
    except InvalidArgument as error:
        raise InvalidArgument(f"latency table {file}: {error}") from None
