"""Length distributions of inputs, from a short description or a file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tidal_client.errors import InvalidArgument

EXPECTED = "expected N, LOW-HIGH, PERCENTILE=N,... from 0 to 100, or a file of lengths"


def draw_lengths(description: str, count: int, *, seed: int = 0) -> list[int]:
    """Draw lengths from a distribution.

    Args:
        description: ``64`` (constant), ``8-128`` (uniform, inclusive), ``0=3,50=24,98=64,100=128`` (percentiles with
            linear interpolation), or a file with one length per line, or CSV with the columns ``tokens`` and
            ``count``.
        count: Number of lengths.
        seed: Seed; equal seeds give equal lengths.

    Raises:
        InvalidArgument: The description is malformed, or a length is below 1.
    """
    rng = np.random.default_rng(seed)
    if "=" in description:
        drawn = _percentiles(description, rng.uniform(0, 100, count))
    elif (numbers := _numbers(description.split("-"))) is not None and len(numbers) <= 2:
        low, high = numbers[0], numbers[-1]
        if low > high:
            raise InvalidArgument(f"lengths '{description}': {EXPECTED}")
        drawn = rng.integers(low, high, count, np.int64, endpoint=True)
    elif Path(description).is_file():
        lengths, weights = _read(Path(description))
        drawn = rng.choice(lengths, count, p=weights / weights.sum())
    else:
        raise InvalidArgument(f"lengths '{description}': {EXPECTED}")
    if drawn.min() < 1:
        raise InvalidArgument(f"lengths '{description}': expected lengths of 1 or more")
    return [int(length) for length in drawn]


def _numbers(parts: Sequence[str]) -> list[int] | None:
    return [int(part) for part in parts] if all(part.strip().isdecimal() for part in parts) else None


def _percentiles(
    description: str, at: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    try:
        points = [(float(p), float(n)) for p, n in (part.split("=") for part in description.split(","))]
    except ValueError:
        raise InvalidArgument(f"lengths '{description}': {EXPECTED}") from None
    ranks, lengths = zip(*points, strict=True)
    if ranks[0] != 0 or ranks[-1] != 100 or list(ranks) != sorted(set(ranks)) or list(lengths) != sorted(lengths):
        raise InvalidArgument(f"lengths '{description}': expected ascending percentiles from 0 to 100")
    return np.rint(np.interp(at, ranks, lengths)).astype(np.int64)


def _read(
    file: Path,
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.reader(lines) if row]
        if rows and rows[0] == ["tokens", "count"]:
            table = [(int(tokens), float(count)) for tokens, count in rows[1:]]
        else:
            table = [(int(length), 1.0) for (length,) in rows]
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"lengths {file}: {error}") from None
    weights = np.array([weight for _, weight in table])
    if not len(table) or weights.min() < 0 or not weights.sum() > 0:
        raise InvalidArgument(f"lengths {file}: expected at least one length, and counts of at least 0")
    return np.array([length for length, _ in table], np.int64), weights
