"""Tokenise texts with a model's own fast tokenizer, within the limits of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from tidal.errors import InvalidArgument
from tidal.text.limits import Limits


@dataclass(frozen=True, slots=True)
class Encoded:
    """Tokens of one query.

    Attributes:
        ids: Token ids, of shape [length], including special tokens.
        type_ids: Token types, of shape [length].
    """

    ids: npt.NDArray[np.int64]
    type_ids: npt.NDArray[np.int64]


class TextTokenizer:
    """Tokenises queries.

    Args:
        file: Path of a `tokenizer.json`.
        max_length: Maximum length of a query in tokens, including special tokens.
        truncate: Whether longer queries are truncated to `max_length` rather than refused.
    """

    def __init__(self, file: Path, max_length: int, *, truncate: bool = False) -> None:
        self._limits = Limits(max_length, truncate)
        self._tokenizer = open_tokenizer(file)
        if truncate:
            self._tokenizer.enable_truncation(max_length)
        self.max_length = max_length
        # Upper bound of the ids; ids may have gaps, so it can be more than the number of tokens.
        self.vocab_size: int = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    @property
    def tokenizer(self) -> Tokenizer:
        """The underlying tokenizer, which also decodes token ids; any thread may use it."""
        return self._tokenizer

    def encode(self, texts: Sequence[bytes], pairs: Sequence[bytes] | None = None) -> list[Encoded | InvalidArgument]:
        """Tokenise texts.

        Args:
            texts: Rows of `text_input`.
            pairs: Rows of `text_pair`; None if there are none.

        Returns:
            For each row its tokens or its error.
        """
        queries = self._limits.decode(texts, pairs)
        valid = [query for query in queries if not isinstance(query, InvalidArgument)]
        encodings = iter(self._tokenizer.encode_batch_fast(valid) if valid else ())
        return [
            query if isinstance(query, InvalidArgument) else self._bounded(row, next(encodings))
            for row, query in enumerate(queries)
        ]

    def encode_all(self, texts: Sequence[bytes], pairs: Sequence[bytes] | None = None) -> list[Encoded]:
        """Tokenise the rows of one request; an invalid row refuses all.

        Nothing is tokenised if a row has too many bytes, and nothing after the slice in which a row has too many
        tokens: 64 rows of 32 KiB, which would take 1.5 s, are refused after the first.

        Args:
            texts: Rows of `text_input`.
            pairs: Rows of `text_pair`; None if there are none.

        Raises:
            InvalidArgument: The error of the first row that is not accepted.
        """
        queries: list[str | tuple[str, str]] = []
        for query in self._limits.decode(texts, pairs):
            if isinstance(query, InvalidArgument):
                raise query
            queries.append(query)
        rows: list[Encoded] = []
        for part in self._limits.slices(queries):
            for encoding in self._tokenizer.encode_batch_fast(part):
                row = self._bounded(len(rows), encoding)
                if isinstance(row, InvalidArgument):
                    raise row
                rows.append(row)
        return rows

    def _bounded(self, row: int, encoding: Encoding) -> Encoded | InvalidArgument:
        ids = np.asarray(encoding.ids, np.int64)
        return self._limits.refusal(row, len(ids)) or Encoded(ids, np.asarray(encoding.type_ids, np.int64))


def open_tokenizer(file: Path) -> Tokenizer:
    """Open a `tokenizer.json` without the padding and truncation that it may configure."""
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
