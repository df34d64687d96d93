"""The labelled queries: labels as numbers, and a split into parts that share no text."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument
from tidal_builders.rows import Columns, Rows, label_numbers, read_rows, refuse
from tidal_builders.tabi.outputs import Data
from tidal_builders.tabi.spec import Parts

# Queries that a part needs at least: fewer say nothing about a threshold.
_LEAST_ROWS = 10
# A regression's values are spread over the parts by this many ranges.
_RANGES = 10


@dataclass(frozen=True, slots=True)
class Queries:
    """A labelled file: its queries, and whether they are pairs of texts."""

    data: Data
    pairs: bool


def read_queries(path: Path, columns: Columns, labels: Sequence[str] | None, parts: Parts) -> Queries:
    """Read a labelled file and split its queries; arguments and errors as `read_rows` and `labelled_data`."""
    rows = read_rows(path, columns)
    return Queries(labelled_data(rows, labels, parts), rows.pairs)


def labelled_data(rows: Rows, labels: Sequence[str] | None, parts: Parts) -> Data:
    """Queries with their truth, split.

    Args:
        rows: of the labelled file.
        labels: label names by number; None for a regression.
        parts: shares of the queries.

    Raises:
        InvalidArgument: a row's label is wrong (named by its line), or a part has too few rows.
    """
    if labels is None:
        values = regression_values(rows)
        ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
        return _parted(rows, values, ranks * _RANGES // len(ranks), parts)
    numbers = label_numbers(rows, labels)
    return _parted(rows, numbers, numbers, parts)


def regression_values(rows: Rows) -> npt.NDArray[np.float64]:
    """The value of each row, float64 [n].

    Raises:
        InvalidArgument: a row's value is no finite number, or all are the same.
    """
    values = [_number(label) for label in rows.labels]
    refuse(
        rows.path,
        [
            f"line {line}: the value '{label[:60]}' is no finite number, as a regression's label has to be"
            for line, label, value in zip(rows.lines, rows.labels, values, strict=True)
            if not math.isfinite(value)
        ],
    )
    if len(set(values)) == 1:
        raise InvalidArgument(f"field 'data': all values of {rows.path} are {values[0]:g}: there is nothing to measure")
    return np.asarray(values, np.float64)


def split(texts: Sequence[tuple[str, ...]], strata: npt.NDArray[np.int64], parts: Parts) -> npt.NDArray[np.int8]:
    """The part of each query, int8 [n]; it depends on nothing but the arguments.

    Equal texts lie in one part. Of every stratum each part gets its share, as nearly as that allows.

    Args:
        texts: the queries.
        strata: what is to be spread evenly: labels, or ranges of a regression's values.
        parts: the shares.
    """
    rows_of: dict[tuple[str, ...], list[int]] = {}
    for row, text in enumerate(texts):
        rows_of.setdefault(tuple(each.strip() for each in text), []).append(row)
    shares, taken = np.asarray(parts.shares), np.zeros(3)
    part = np.zeros(len(texts), np.int8)
    # By stratum, and within one in an order that has to do with nothing else: any stretch then has its shares.
    for text in sorted(rows_of, key=lambda text: (int(strata[rows_of[text][0]]), _hash(text))):
        rows = rows_of[text]
        neediest = int(np.argmax(shares * (taken.sum() + len(rows)) - taken))
        part[rows] = neediest
        taken[neediest] += len(rows)
    return part


def _parted(
    rows: Rows,
    truth: npt.NDArray[np.int64] | npt.NDArray[np.float64],
    strata: npt.NDArray[np.int64],
    parts: Parts,
) -> Data:
    part = split(rows.texts, strata, parts)
    for name, count in zip(Parts.model_fields, np.bincount(part, minlength=3).tolist(), strict=True):
        if count < _LEAST_ROWS:
            raise InvalidArgument(
                f"field 'data': {rows.path} gives the {name} part {count} of its {len(rows.lines)} rows, at least "
                f"{_LEAST_ROWS} are needed: give more rows, or that part a larger share in 'parts'"
            )
    return Data(rows.texts, truth, part)


def _hash(text: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join(text).encode("utf-8", "surrogatepass")).hexdigest()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
