"""Texts of a file: lines, a field of JSON lines, a column of CSV or of Parquet. No more than a part is in memory."""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tidal_client.errors import InvalidArgument

#: Field or column that is read unless another one is named.
DEFAULT_FIELD: Final = "text"
_PARQUET_ROWS: Final = 4096


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file of texts.

    Attributes:
        path: Path of the file.
        numbered: Reads the texts from the beginning, each with the number of its line or row from 1.
        unit: Unit that has one text, for errors: ``line`` or ``row``.
    """

    path: Path
    numbered: Callable[[], Iterator[tuple[int, str]]]
    unit: str

    def read(self) -> Iterator[str]:
        """Read the texts from the beginning."""
        return (text for _, text in self.numbered())

    def name(self, index: int) -> str:
        """Return how errors name a text; reads the file up to it.

        Args:
            index: Index of the text, from 0.
        """
        number, _ = next(islice(self.numbered(), index, None), (index + 1, ""))
        return f"{self.unit} {number}"


@dataclass(frozen=True, slots=True)
class Scan:
    """What identifies the texts of a file."""

    texts: int
    #: Hash of all texts, in hexadecimal digits.
    digest: str


def open_texts(path: Path, field: str | None = None) -> TextFile:
    """Return the texts of a file; its suffix determines the format. Blank lines of JSON lines and CSV are no texts.

    Args:
        path: ``.jsonl`` or ``.ndjson``, ``.csv``, ``.tsv``, ``.parquet``, or any other file with one text per line.
        field: Field or column with the text; None: `DEFAULT_FIELD`.

    Raises:
        InvalidArgument: A field is named for a file of lines.
    """
    column, suffix = field or DEFAULT_FIELD, path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return TextFile(path, lambda: _json_lines(path, column), "line")
    if suffix in (".csv", ".tsv"):
        return TextFile(path, lambda: _csv_rows(path, column, "\t" if suffix == ".tsv" else ","), "row")
    if suffix == ".parquet":
        return TextFile(path, lambda: _parquet_rows(path, column), "row")
    if field is not None:
        raise InvalidArgument(
            f"field: {path.name} is read as lines of text; a field requires a file that ends in .jsonl, .csv, .tsv or "
            ".parquet"
        )
    return TextFile(path, lambda: _lines(path), "line")


def scan(texts: TextFile, progress: Callable[[int], None] | None = None) -> Scan:
    """Read all texts and check them.

    Args:
        texts: Texts to read.
        progress: Called with the number of texts read so far.

    Raises:
        InvalidArgument: The file cannot be read, has no texts, or a text is missing or empty; the message names it.
    """
    count, digest, empty = 0, hashlib.blake2b(digest_size=16), list[int]()
    try:
        for count, text in enumerate(texts.read(), 1):
            content = text.encode()
            digest.update(len(content).to_bytes(8, "little") + content)
            if not text.strip():
                empty.append(count - 1)
            if progress is not None and count % 10_000 == 0:
                progress(count)
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"{texts.path}: cannot be read: {error}") from None
    if empty:
        others = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise InvalidArgument(f"{texts.path}: {texts.name(empty[0])}{others}: the text is empty; remove it")
    if not count:
        raise InvalidArgument(f"{texts.path}: the file is empty; expected one text per line or row")
    return Scan(count, digest.hexdigest())


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            yield number, _decoded(path, number, line)


def _decoded(path: Path, number: int, line: bytes) -> str:
    try:
        text = line.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"{path}: line {number}: not valid UTF-8 at byte {error.start}; save the file as UTF-8"
        ) from None
    return text.removeprefix("\ufeff") if number == 1 else text


def _json_lines(path: Path, field: str) -> Iterator[tuple[int, str]]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
        except ValueError as error:
            raise InvalidArgument(
                f"{path}: line {number}: not valid JSON: {error}; expected one JSON object per line"
            ) from None
        if not isinstance(record, dict) or field not in record:
            known = f"; its fields are {', '.join(map(str, record))}" if isinstance(record, dict) else ""
            raise InvalidArgument(f"{path}: line {number}: no field '{field}'{known}")
        yield number, _checked(path, f"line {number}", field, record[field])


def _csv_rows(path: Path, column: str, delimiter: str) -> Iterator[tuple[int, str]]:
    csv.field_size_limit(min(sys.maxsize, 1 << 30))
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = filter(None, csv.reader(file, delimiter=delimiter))  # a blank line is a row without columns
        header = next(rows, [])
        if column not in header:
            raise InvalidArgument(f"{path}: no column '{column}'; its columns are {', '.join(header)}")
        index = header.index(column)
        for number, row in enumerate(rows, 1):
            if index >= len(row):
                raise InvalidArgument(f"{path}: row {number}: {len(row)} columns; expected {len(header)}")
            yield number, row[index]


def _parquet_rows(path: Path, column: str) -> Iterator[tuple[int, str]]:
    import pyarrow.parquet as parquet
    from pyarrow.lib import ArrowInvalid

    try:
        file = parquet.ParquetFile(path)
    except ArrowInvalid as error:
        raise InvalidArgument(f"{path}: cannot be read: {error}") from None
    with file:
        if column not in file.schema_arrow.names:
            known = ", ".join(file.schema_arrow.names)
            raise InvalidArgument(f"{path}: no column '{column}'; its columns are {known}")
        number = 0
        for batch in file.iter_batches(_PARQUET_ROWS, columns=[column]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield number, _checked(path, f"row {number}", column, value)


def _checked(path: Path, name: str, field: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{path}: {name}: '{field}' is {type(value).__name__}; expected a text")
    return value
