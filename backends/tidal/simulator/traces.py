"""Request traces from files: rates by second, recorded requests, and length distributions."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from tidal.errors import InvalidArgument
from tidal.simulator.requests import Floats, Ints, RequestsInSecond


@dataclass(frozen=True)
class RecordedRequests:
    """Recorded requests.

    Args:
        times: Arrival times in seconds from the start, ascending, float64 [requests].
        lengths: Lengths in tokens, int64 [requests].
        longest: Maximum length in tokens; longer requests are truncated to it.
    """

    times: Floats
    lengths: Ints
    longest: int

    @property
    def seconds(self) -> int:
        """Duration of the arrivals in whole seconds."""
        return math.floor(float(self.times[-1])) + 1

    def __iter__(self) -> Iterator[RequestsInSecond]:
        edges = np.searchsorted(self.times, np.arange(self.seconds + 1))
        lengths = np.minimum(self.lengths, self.longest)
        for second in range(self.seconds):
            low, high = edges[second], edges[second + 1]
            yield RequestsInSecond(float(second), self.times[low:high], lengths[low:high])


def read_requests(file: Path, columns: tuple[str, str] = ("time", "length"), *, longest: int = 512) -> RecordedRequests:
    """Read recorded requests from CSV with a header, optionally gzipped (`.gz`).

    Args:
        file: File to read.
        columns: Names of the columns of the time in seconds and of the length in tokens.
        longest: Maximum length in tokens; longer requests are truncated to it.

    Raises:
        InvalidArgument: The file cannot be read, or its content is invalid; the message names the row.
    """
    times, lengths = _read(file, columns)
    if (lengths < 1).any() or (lengths % 1 != 0).any():
        raise InvalidArgument(f"requests {file}: column '{columns[1]}' must have whole numbers of at least 1")
    order = np.argsort(times, kind="stable")
    return RecordedRequests(times[order] - times.min(), lengths[order].astype(np.int64), longest)


def read_rates(
    file: Path, columns: tuple[str, str] = ("second", "requests"), *, start_s: float = 0.0, seconds: int | None = None
) -> list[float]:
    """Read the number of requests per second from CSV with a header, optionally gzipped (`.gz`).

    Args:
        file: File to read; missing seconds have no requests.
        columns: Names of the columns of the second and of its number of requests.
        start_s: Start after the file's first second, in seconds.
        seconds: Number of seconds; None: all.

    Raises:
        InvalidArgument: The file cannot be read, its content is invalid, or it is too short.
    """
    times, counts = _read(file, columns)
    if (counts < 0).any():
        raise InvalidArgument(f"rates {file}: column '{columns[1]}' must not have negative numbers")
    at = np.floor(times - times.min() - start_s).astype(np.int64)
    upto = int(at.max()) + 1 if seconds is None else seconds
    if upto < 1 or upto > at.max() + 1:
        raise InvalidArgument(
            f"rates {file}: the file has {int(at.max() + 1 + start_s)} seconds; {seconds or 1} from second {start_s:g} "
            "were requested"
        )
    kept = (at >= 0) & (at < upto)
    rates: list[float] = np.bincount(at[kept], weights=counts[kept], minlength=upto).tolist()
    return rates


def read_lengths(description: str) -> tuple[list[int], list[float]]:
    """Return lengths in tokens and their weights.

    Args:
        description: A CSV file with the columns `tokens` and `count`, a single length, or percentiles with linear
            interpolation, `0=3,50=24,100=125`.

    Raises:
        InvalidArgument: The description is malformed.
    """
    expected = "expected N, PERCENTILE=N,... from 0 to 100, or a CSV file with the columns tokens and count"
    if Path(description).is_file():
        tokens, counts = _read(Path(description), ("tokens", "count"))
        return [int(each) for each in tokens], counts.tolist()
    if description.isdecimal():
        return [int(description)], [1.0]
    try:
        points = [(float(share), float(length)) for share, length in (p.split("=") for p in description.split(","))]
    except ValueError:
        raise InvalidArgument(f"lengths '{description}': {expected}") from None
    shares, lengths = zip(*points, strict=True)
    ascending = list(shares) == sorted(set(shares)) and list(lengths) == sorted(lengths)
    if not ascending or shares[0] != 0 or shares[-1] != 100 or lengths[0] < 1:
        raise InvalidArgument(f"lengths '{description}': {expected}, ascending, lengths of at least 1")
    drawn = np.rint(np.interp((np.arange(10_000) + 0.5) / 100, shares, lengths)).astype(np.int64)
    values, counts_of = np.unique(drawn, return_counts=True)
    return values.tolist(), counts_of.astype(float).tolist()


def _read(file: Path, columns: Sequence[str]) -> tuple[Floats, Floats]:
    """Read two columns of numbers."""
    rows: list[tuple[float, ...]] = []
    try:
        with _open(file) as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise InvalidArgument(
                    f"{file}: no column '{missing[0]}'; the columns are {', '.join(reader.fieldnames or ())}"
                )
            for row in reader:
                try:
                    rows.append(tuple(float(row[name]) for name in columns))
                except (TypeError, ValueError):
                    values = [row[name] for name in columns]
                    raise InvalidArgument(f"{file}, row {reader.line_num}: expected numbers, got {values}") from None
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise InvalidArgument(f"{file}: cannot be read: {error}") from None
    if not rows or not np.isfinite(rows).all():
        raise InvalidArgument(f"{file}: expected one or more rows of finite numbers")
    first, second = np.asarray(rows, np.float64).T
    return first, second


def _open(file: Path) -> IO[str]:
    if file.suffix == ".gz":
        return cast(IO[str], gzip.open(file, "rt", encoding="utf-8", newline=""))
    return file.open(encoding="utf-8", newline="")
