"""Lists of texts as requests of several rows, and the results of their rows in the order of the list."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tidal_client.codec import InferRequest
from tidal_client.errors import InvalidArgument
from tidal_client.results import Array

#: Maximum number of bytes of text in a request of several rows: a request of long texts must end within the timeout.
MAX_BYTES: Final = 1 << 15
#: Indices of rows.
Rows = npt.NDArray[np.intp]
Row = TypeVar("Row")

# How Tidal's models name a row of a request in an error.
_NAMED_ROW = re.compile(r"\b(text_input|text_pair) row (\d+)\b")


@dataclass(frozen=True, slots=True)
class RowCall(Generic[Row]):
    """A call with a list of texts: what is sent, and how a row of a response becomes a result."""

    #: Request of all rows: its inputs are texts, [rows, 1] each.
    whole: InferRequest
    #: Name of the caller's argument by input name; ``[]`` at its end stands for the index of the row.
    arguments: Mapping[str, str]
    #: Returns the results of a response, one for each of its rows.
    read: Callable[[Mapping[str, Array], int], Sequence[Row]]

    def __len__(self) -> int:
        return len(next(iter(self.whole.inputs.values())))

    def request(self, rows: Rows | None) -> InferRequest:
        """Return the request of some rows; None: of all."""
        if rows is None:
            return self.whole
        return replace(self.whole, inputs={name: column[rows] for name, column in self.whole.inputs.items()})

    def parts(self, max_rows: int) -> list[Rows]:
        """Return the rows of each request, see `split_rows`."""
        columns = [column[:, 0].tolist() for column in self.whole.inputs.values()]
        return split_rows([sum(map(len, texts)) for texts in zip(*columns, strict=True)], max_rows)

    def error(self, error: InvalidArgument, rows: Rows | None) -> InvalidArgument:
        """Return the error of a request with the caller's arguments and indices in place of the request's rows."""

        def named(match: re.Match[str]) -> str:
            row, argument = int(match[2]), self.arguments.get(match[1], match[0])
            index = row if rows is None or row >= len(rows) else int(rows[row])
            return f"{argument[:-2]}[{index}]" if argument.endswith("[]") else argument

        return InvalidArgument(_NAMED_ROW.sub(named, str(error)))


def split_rows(sizes: Sequence[int], max_rows: int) -> list[Rows]:
    """Assign rows to requests of similar sizes, the largest rows first.

    Rows of similar sizes need little padding, and large rows at the end would leave the server idle.

    Args:
        sizes: Bytes of each row.
        max_rows: Maximum number of rows of a request.

    Returns:
        Rows of each request, each row once: at most `max_rows`, and at most `MAX_BYTES` bytes unless it is one row.
    """
    if len(sizes) <= max_rows and sum(sizes) <= MAX_BYTES:
        return [np.arange(len(sizes))] if sizes else []
    order = np.argsort(-np.asarray(sizes), kind="stable")
    parts, start, held = [], 0, 0
    for end, row in enumerate(order):
        size = sizes[row]
        if end > start and (end - start == max_rows or held + size > MAX_BYTES):
            parts.append(order[start:end])
            start, held = end, 0
        held += size
    return [*parts, order[start:]]


def place(results: list[Row | None], rows: Rows, found: Sequence[Row]) -> None:
    """Write the results of a request's rows to their indices in the list."""
    for row, result in zip(rows.tolist(), found, strict=True):
        results[row] = result
