"""Recorded arrivals from a file."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from tidal_client.errors import InvalidArgument
from tidal_client.load.arrivals import Times


def read_trace(
    file: Path,
    *,
    column: str | None = None,
    count_column: str | None = None,
    unit_s: float = 1.0,
    start_s: float = 0.0,
    count: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
) -> Times:
    """Read recorded arrivals, shifted to start at 0.

    The file has one time per line. With `column` it is CSV with a header (``.csv``, ``.tsv``) or has one JSON object
    per line (``.jsonl``). Files that end in ``.gz`` are decompressed.

    Args:
        file: File to read.
        column: Column of the times; required for CSV and JSON lines.
        count_column: Column of the number of requests; they are spread uniformly at random up to the next row's time.
        unit_s: Unit of the file's times, in seconds.
        start_s: Start of the run after the file's first time, in seconds.
        count: Maximum number of arrivals.
        seconds: Duration of the run, in seconds.
        seed: Seed of the spread of counts.

    Raises:
        InvalidArgument: The file cannot be read, a row is invalid (the message names it), or there are no arrivals in
            the selected part.
    """
    times, counts = _read(file, column, count_column)
    if not len(times):
        raise InvalidArgument(f"trace {file}: the file has no times")
    times *= unit_s
    times -= times.min()
    order = np.argsort(times, kind="stable")
    times, counts = times[order], counts[order]
    kept = times >= start_s
    if seconds is not None:
        kept &= times < start_s + seconds
    times, counts = times[kept] - start_s, counts[kept]
    if count is not None:
        # Rows after the one that completes the count are not needed; a trace of days has tens of millions.
        rows = int(np.searchsorted(np.cumsum(counts), count)) + 1
        times, counts = times[: rows + 1], counts[: rows + 1]
    if count_column is not None:
        times = _spread(times, counts, np.random.default_rng(seed))
    if not len(times):
        raise InvalidArgument(f"trace {file}: no arrivals in the selected part, which starts at {start_s:g} s")
    if seconds is not None:
        times = times[times < seconds]
    return times[:count]


def _spread(times: Times, counts: np.ndarray[tuple[int], np.dtype[np.int64]], rng: np.random.Generator) -> Times:
    gaps = np.diff(times)
    last = float(np.median(gaps)) if len(gaps) else 1.0
    widths = np.append(gaps, last)
    spread = np.repeat(times, counts) + rng.random(int(counts.sum())) * np.repeat(widths, counts)
    return cast(Times, np.sort(spread))


def _read(
    file: Path, column: str | None, count_column: str | None
) -> tuple[Times, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    times, counts = [], []
    try:
        with _open(file) as lines:
            for number, (time, many) in enumerate(_rows(file, lines, column, count_column), 1):
                try:
                    times.append(float(time))
                    counts.append(int(many))
                except (TypeError, ValueError):
                    raise InvalidArgument(
                        f"trace {file}, row {number}: expected a time and a whole number of requests, "
                        f"got {time!r} and {many!r}"
                    ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidArgument(f"trace {file}: cannot be read: {error}") from None
    found, many = np.array(times, np.float64), np.array(counts, np.int64)
    if not np.isfinite(found).all() or (many < 0).any():
        raise InvalidArgument(f"trace {file}: expected finite times and counts of at least 0")
    return found, many


def _open(file: Path) -> IO[str]:
    if file.suffix == ".gz":
        return cast(IO[str], gzip.open(file, "rt", encoding="utf-8", newline=""))
    return file.open(encoding="utf-8", newline="")


def _rows(file: Path, lines: IO[str], column: str | None, count_column: str | None) -> Iterator[tuple[Any, Any]]:
    """Yield the time and number of requests of each row, unconverted."""
    kind = Path(file.name.removesuffix(".gz")).suffix
    if column is None:
        if count_column is not None or kind in (".csv", ".tsv", ".jsonl"):
            raise InvalidArgument(f"trace {file}: expected the name of the column of the times")
        yield from ((line, 1) for line in lines if line.strip())
        return
    records: Iterator[dict[str, Any]]
    if kind == ".jsonl":
        records = (json.loads(line) for line in lines if line.strip())
    else:
        records = cast(Iterator[dict[str, Any]], csv.DictReader(lines, delimiter="\t" if kind == ".tsv" else ","))
    for record in records:
        for name in (column, count_column):
            if name is not None and name not in record:
                raise InvalidArgument(
                    f"trace {file}: no column '{name}'; the columns are {', '.join(map(str, record))}"
                )
        yield record[column], 1 if count_column is None else record[count_column]
