"""Reads labelled files (.tsv, .csv, .jsonl), and names the lines of wrong rows."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from tidal.errors import InvalidArgument, did_you_mean

_TEXT, _PAIR = ("text", "text_a"), ("text_pair", "text_b")
# Number of wrong rows that an error lists.
_LISTED = 3

# Line number at which a row begins, and its values by column.
_Row = tuple[int, dict[str, Any]]


class Columns(BaseModel):
    """Names of the columns of a labelled file, or of the fields of JSON lines."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str | None = Field(None, min_length=1, description="column of the text; default: text or text_a")
    pair: str | None = Field(
        None, min_length=1, description="column of the second text of pairs; default: text_pair or text_b, if it exists"
    )
    label: str = Field("label", min_length=1, description="column of the label's name or number, or of the value")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a labelled file.

    Attributes:
        path: File that was read.
        lines: Line number at which each row begins, from 1.
        texts: The text, or the pair of texts, of each row.
        labels: Label of each row as written in the file.
    """

    path: Path
    lines: tuple[int, ...]
    texts: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]

    @property
    def pairs(self) -> bool:
        """Whether rows have pairs of texts."""
        return len(self.texts[0]) == 2


def read_rows(path: Path, columns: Columns) -> Rows:
    """Read a labelled file.

    Args:
        path: File ending in .tsv (unquoted), .csv or .jsonl, or one of these with .gz.
        columns: Names of its columns. Rows are pairs if a second column is named, or exists by its default name.

    Raises:
        InvalidArgument: The file or a column does not exist, or a row is wrong; names its line.
    """
    rows = _reader(path)(path, _content(path))
    first = next(rows, None)
    if first is None:
        raise InvalidArgument(f"field 'data': {path} contains no rows")
    known = list(first[1])
    names = [_column(path, known, columns.text, _TEXT, "text")]
    if columns.pair is not None or any(each in known for each in _PAIR):
        names.append(_column(path, known, columns.pair, _PAIR, "second text"))
    label = _column(path, known, columns.label, (), "label")
    lines: list[int] = []
    texts: list[tuple[str, ...]] = []
    labels: list[str] = []
    wrong: list[str] = []
    for line, row in itertools.chain([first], rows):
        lines.append(line)
        texts.append(tuple(str(row.get(name)) for name in names))
        labels.append(_label(row.get(label)))
        for name in names:
            value = row.get(name)
            if not isinstance(value, str) or not value.strip():
                wrong.append(f"line {line}: '{name}' is {_shown(value)}, expected a text with at least one word")
            elif not _encodable(value):
                wrong.append(f"line {line}: '{name}' contains an unpaired surrogate, which is not a character")
        if not labels[-1]:
            wrong.append(f"line {line}: '{label}' is {_shown(row.get(label))}, expected a name or a number")
    refuse(path, wrong)
    return Rows(path, tuple(lines), tuple(texts), tuple(labels))


def label_numbers(rows: Rows, labels: Sequence[str]) -> npt.NDArray[np.int64]:
    """The label of each row as its index in `labels`.

    A file uses names or numbers from 0 for all of its labels, because names may look like numbers.

    Args:
        rows: Rows of a labelled file.
        labels: Names of the labels.

    Returns:
        int64 array of shape [rows].

    Raises:
        InvalidArgument: A row has another label; names its line and what is accepted.
    """
    by_name = {name: number for number, name in enumerate(labels)}
    by_number = {str(number): number for number in range(len(labels))}
    named = any(label in by_name for label in rows.labels)
    numbers = by_name if named else by_number
    what = "label names" if named else f"numbers 0 to {len(labels) - 1}, or label names"
    few = f"{', '.join(labels[:6])}{' …' if len(labels) > 6 else ''}"
    refuse(
        rows.path,
        [
            f"line {line}: unknown label '{label[:60]}', accepted are {what} ({few})"
            for line, label in zip(rows.lines, rows.labels, strict=True)
            if label not in numbers
        ],
    )
    return np.asarray([numbers[label] for label in rows.labels], np.int64)


def refuse(path: Path, wrong: Sequence[str]) -> None:
    """Refuse a file with wrong rows.

    Args:
        path: The file.
        wrong: One clause per wrong row, which begins with its line.

    Raises:
        InvalidArgument: There are wrong rows.
    """
    if wrong:
        more = f"; and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
        raise InvalidArgument(f"field 'data': {path}: {'; '.join(wrong[:_LISTED])}{more}")


def _column(path: Path, known: Sequence[str], wanted: str | None, usual: Sequence[str], role: str) -> str:
    accepted = usual if wanted is None else (wanted,)
    for name in accepted:
        if name in known:
            return name
    raise InvalidArgument(
        f"field 'columns': {path} has no column {' or '.join(repr(name) for name in accepted)} for the {role}; "
        f"{did_you_mean(accepted[0], known)}"
    )


def _label(value: object) -> str:
    """A label as text: a name, or a number as written; empty for any other value."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return ""


def _encodable(text: str) -> bool:
    """Whether a text can be encoded as UTF-8; JSON escapes can write texts that cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    return "missing" if value is None else "empty" if value == "" else repr(value)[:60]


def _content(path: Path) -> str:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidArgument(f"field 'data': {path} cannot be read: {reason}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InvalidArgument(f"field 'data': {path}: line {line} is not valid UTF-8") from None


def _reader(path: Path) -> Callable[[Path, str], Iterator[_Row]]:
    ending = Path(path.name.removesuffix(".gz")).suffix
    if ending not in _READERS:
        raise InvalidArgument(
            f"field 'data': {path} ends in '{ending}', accepted are {', '.join(_READERS)}, each also with .gz"
        )
    return _READERS[ending]


def _tsv(path: Path, content: str) -> Iterator[_Row]:
    # Lines end with \n or \r\n only: other characters that `splitlines` splits at occur in texts.
    lines = ((number, line.removesuffix("\r")) for number, line in enumerate(content.split("\n"), 1))
    return _table(path, ((number, line.split("\t")) for number, line in lines if line))


def _csv(path: Path, content: str) -> Iterator[_Row]:
    def records() -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(io.StringIO(content, newline=""), strict=True)
        while True:
            line = reader.line_num + 1
            try:
                record = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise InvalidArgument(f"field 'data': {path}: line {line} is not valid CSV: {error}") from None
            if record:
                yield line, record

    return _table(path, records())


def _table(path: Path, records: Iterator[tuple[int, list[str]]]) -> Iterator[_Row]:
    """Rows by column; the first record names the columns."""
    _, header = next(records, (0, []))
    if duplicate := next((name for name in header if header.count(name) > 1), None):
        raise InvalidArgument(f"field 'data': {path} has several columns '{duplicate}'; rename all but one")
    for line, record in records:
        if len(record) != len(header):
            raise InvalidArgument(
                f"field 'data': {path}: line {line} has {len(record)} columns, the first line names {len(header)}: "
                f"{', '.join(header)[:200]}"
            )
        yield line, dict(zip(header, record, strict=True))


def _jsonl(path: Path, content: str) -> Iterator[_Row]:
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InvalidArgument(f"field 'data': {path}: line {number} is not valid JSON: {error}") from None
        if not isinstance(row, dict):
            raise InvalidArgument(f"field 'data': {path}: line {number} is not a JSON object")
        yield number, row


_READERS: dict[str, Callable[[Path, str], Iterator[_Row]]] = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl}
