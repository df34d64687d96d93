"""Arrays of texts, token ids and images, in requests of as many rows as a model accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tidal_client.results import Array
from tidal_gateway.errors import invalid
from tidal_gateway.upstream.models import ModelFacts

_INT32_MAX = 2**31 - 1
# Maximum number of rows of a request to Triton, whatever a model accepts.
_MAX_ROWS = 64


def text_column(name: str, texts: Sequence[str]) -> Array:
    """Return texts as an array [rows, 1] of bytes.

    Raises:
        Refusal: A text is not valid Unicode.
    """
    column = np.empty((len(texts), 1), np.object_)
    for row, text in enumerate(texts):
        column[row, 0] = encode(name, text)
    return column


def encode(name: str, text: str) -> bytes:
    """Return a text as UTF-8.

    Raises:
        Refusal: It is not valid Unicode.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise invalid(f"field '{name}': expected valid Unicode, got a lone surrogate", name) from None


def bytes_column(contents: Sequence[bytes]) -> Array:
    """Return contents of files as an array [rows, 1] of bytes."""
    column = np.empty((len(contents), 1), np.object_)
    column[:, 0] = contents
    return column


def token_columns(name: str, rows: Sequence[Sequence[int]], facts: ModelFacts) -> dict[str, Array]:
    """Return token ids as `input_ids` and `attention_mask` [rows, longest], padded with zeros.

    Raises:
        Refusal: A row is empty, an id is not accepted, or the model reads no token ids.
    """
    if "input_ids" not in facts.inputs:
        raise invalid(f"model '{facts.name}' reads no token ids; send texts", name)
    longest = max(map(len, rows))
    ids, mask = np.zeros((len(rows), longest), np.int64), np.zeros((len(rows), longest), np.int64)
    for row, tokens in enumerate(rows):
        if not tokens or min(tokens) < 0 or max(tokens) > _INT32_MAX:
            raise invalid(f"field '{name}': expected rows of 1 or more token ids from 0, got {str(tokens)[:80]}", name)
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    return {"input_ids": ids} if mask.all() else {"input_ids": ids, "attention_mask": mask}


def row_slices(facts: ModelFacts, rows: int) -> Iterator[slice]:
    """Yield the rows of each request."""
    most = min(_MAX_ROWS, facts.max_rows or 1)
    for start in range(0, rows, most):
        yield slice(start, start + most)


def cut(columns: dict[str, Array], rows: slice) -> dict[str, Array]:
    """Return some rows of each array."""
    return {name: column[rows] for name, column in columns.items()}


def joined(parts: Sequence[dict[str, Array]], name: str) -> Array:
    """Return one output of several answers, with all rows."""
    found: Any = [part[name] for part in parts]
    return found[0] if len(found) == 1 else np.concatenate(found)
