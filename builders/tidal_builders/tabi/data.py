"""The labelled queries, their split into parts that share no text, and each level's outputs on them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument
from tidal.text.words import WordTokenizer
from tidal_builders.rows import Columns, Rows, label_numbers, read_rows, refuse
from tidal_builders.tabi.spec import Parts

Texts = Sequence[tuple[str, ...]]
Indices = npt.NDArray[np.int64]
# The attention that each token of a query received, special tokens included; one float32 array [length] per query.
Importance = tuple[npt.NDArray[np.float32], ...]

# Values of `LabelledData.part`. Temperatures and tuned weights come from the first, thresholds and the choice from the
# second; no choice depends on the third.
CALIBRATION, SELECTION, REPORT = 0, 1, 2
# Minimum number of queries of a part: fewer are not enough for a threshold.
_MIN_ROWS = 10
# A regression's values are divided into this many ranges, each of which is spread over the parts.
_RANGES = 10


@dataclass(frozen=True, slots=True)
class LabelledData:
    """Labelled queries.

    Attributes:
        texts: Text of each query, or the two texts of a pair.
        truth: Indices of the labels, int64 [n], or a regression's values, float64 [n].
        part: CALIBRATION, SELECTION or REPORT, int8 [n]; equal texts are in one part.
    """

    texts: tuple[tuple[str, ...], ...]
    truth: npt.NDArray[np.int64] | npt.NDArray[np.float64]
    part: npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class LabelledQueries:
    """A labelled file: its queries, and whether they are pairs of texts."""

    data: LabelledData
    pairs: bool


@dataclass(frozen=True, slots=True)
class LevelOutputs:
    """One level's outputs on n queries, one at a time.

    Attributes:
        logits: Logits, float32 [n, classes]; for a regression [n, 1].
        importance: Attention that each token received (`attention_received`, special tokens included), one float32
            array [length] per query; None for a level that does not give it.
        latency_ms: Time of each query in milliseconds, float64 [n].
    """

    logits: npt.NDArray[np.float32]
    importance: Importance | None
    latency_ms: npt.NDArray[np.float64]

    def take(self, rows: Indices) -> LevelOutputs:
        """Return the outputs on some of the queries.

        Args:
            rows: Indices of the queries.
        """
        importance = None if self.importance is None else tuple(self.importance[row] for row in rows.tolist())
        return LevelOutputs(self.logits[rows], importance, self.latency_ms[rows])

    def slowed(self, factor: float) -> LevelOutputs:
        """Return the same outputs with all times multiplied by a factor.

        Args:
            factor: Factor of the times.
        """
        return LevelOutputs(self.logits, self.importance, factor * self.latency_ms)


@dataclass(frozen=True, slots=True)
class CollectedLevel:
    """One level and its outputs on all queries of the data.

    Attributes:
        name: Short name from the spec.
        outputs: Outputs on the whole texts.
        tokenizer: Tokenizer of the level, for pruning by its attention.
    """

    name: str
    outputs: LevelOutputs
    tokenizer: WordTokenizer


class Rerun(Protocol):
    """Runs a level on pruned queries; results are cached by content, so a repeated call costs nothing."""

    def __call__(self, level: int, texts: Texts, /) -> LevelOutputs:
        """Return the outputs of a level on pruned queries, one at a time.

        Args:
            level: Index of the level in the sequence of `CollectedLevel`.
            texts: Pruned texts of the queries.
        """
        ...


def read_queries(path: Path, columns: Columns, labels: Sequence[str] | None, parts: Parts) -> LabelledQueries:
    """Read a labelled file and split its queries.

    Args:
        path: Labelled file.
        columns: Names of its columns.
        labels: Label names by index; None for a regression.
        parts: Shares of the queries.

    Raises:
        InvalidArgument: As `read_rows` and `labelled_data`.
    """
    rows = read_rows(path, columns)
    return LabelledQueries(labelled_data(rows, labels, parts), rows.pairs)


def labelled_data(rows: Rows, labels: Sequence[str] | None, parts: Parts) -> LabelledData:
    """Return queries with their truth, split into parts.

    Args:
        rows: Rows of the labelled file.
        labels: Label names by index; None for a regression.
        parts: Shares of the queries.

    Raises:
        InvalidArgument: A row's label is wrong (the message names its line), or a part has too few rows.
    """
    if labels is None:
        values = regression_values(rows)
        ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
        return _split_rows(rows, values, ranks * _RANGES // len(ranks), parts)
    numbers = label_numbers(rows, labels)
    return _split_rows(rows, numbers, numbers, parts)


def regression_values(rows: Rows) -> npt.NDArray[np.float64]:
    """Return the value of each row, float64 [n].

    Args:
        rows: Rows of the labelled file.

    Raises:
        InvalidArgument: A row's value is not a finite number, or all values are the same.
    """
    values = [_number(label) for label in rows.labels]
    refuse(
        rows.path,
        [
            f"line {line}: the label of a regression must be a finite number, got '{label[:60]}'"
            for line, label, value in zip(rows.lines, rows.labels, values, strict=True)
            if not math.isfinite(value)
        ],
    )
    if len(set(values)) == 1:
        raise InvalidArgument(
            f"field 'data': all values of {rows.path} are {values[0]:g}; a regression needs different values"
        )
    return np.asarray(values, np.float64)


def split(texts: Texts, strata: npt.NDArray[np.int64], parts: Parts) -> npt.NDArray[np.int8]:
    """Return the part of each query, int8 [n]; it depends on the arguments only.

    Equal texts are in one part. Each part gets its share of every stratum, as closely as that allows.

    Args:
        texts: Texts of the queries, n.
        strata: Groups to spread evenly, [n]: labels, or ranges of a regression's values.
        parts: Shares of the queries.
    """
    rows_of: dict[tuple[str, ...], list[int]] = {}
    for row, text in enumerate(texts):
        rows_of.setdefault(_stripped(text), []).append(row)
    shares, assigned = np.asarray(parts.shares), np.zeros(3)
    part = np.zeros(len(texts), np.int8)
    # By stratum, and within one by a hash, which is unrelated to anything else: any stretch then has its shares.
    for text in sorted(rows_of, key=lambda text: (int(strata[rows_of[text][0]]), _hash(text))):
        rows = rows_of[text]
        neediest = int(np.argmax(shares * (assigned.sum() + len(rows)) - assigned))
        part[rows] = neediest
        assigned[neediest] += len(rows)
    return part


def text_numbers(texts: Texts, rows: Indices) -> Indices:
    """Return a number for the text of each of some queries, from 0 without gaps: the same for equal texts.

    Args:
        texts: Texts of all queries.
        rows: Indices of the queries, [n].

    Returns:
        The numbers, [n].
    """
    numbers: dict[tuple[str, ...], int] = {}
    return np.array([numbers.setdefault(_stripped(texts[row]), len(numbers)) for row in rows.tolist()], np.int64)


def _split_rows(
    rows: Rows,
    truth: npt.NDArray[np.int64] | npt.NDArray[np.float64],
    strata: npt.NDArray[np.int64],
    parts: Parts,
) -> LabelledData:
    part = split(rows.texts, strata, parts)
    for name, count in zip(Parts.model_fields, np.bincount(part, minlength=3).tolist(), strict=True):
        if count < _MIN_ROWS:
            raise InvalidArgument(
                f"field 'data': {rows.path} gives the {name} part {count} of its {len(rows.lines)} rows, at least "
                f"{_MIN_ROWS} are needed: give more rows, or that part a larger share in 'parts'"
            )
    return LabelledData(rows.texts, truth, part)


def _stripped(text: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each.strip() for each in text)


def _hash(text: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join(text).encode("utf-8", "surrogatepass")).hexdigest()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
