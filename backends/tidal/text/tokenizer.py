"""A model's own fast tokenizer: texts in, token ids out, with the limits that a server needs."""

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
    """One query as the model reads it; arrays of shape [length], int64, special tokens included."""

    ids: npt.NDArray[np.int64]
    type_ids: npt.NDArray[np.int64]


class TextTokenizer:
    """Tokenises queries of at most `max_length` tokens, special tokens included.

    Args:
        file: a `tokenizer.json`.
        max_length: longest query in tokens.
        truncate: cut a longer query to `max_length` rather than refuse it.
    """

    def __init__(self, file: Path, max_length: int, *, truncate: bool = False) -> None:
        self._limits = Limits(max_length, truncate)
        self._tokenizer = open_tokenizer(file)
        if truncate:
            self._tokenizer.enable_truncation(max_length)
        self.max_length = max_length
        # Ids are below this. They may have gaps, so it can be more than there are tokens.
        self.vocab_size: int = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    @property
    def tokenizer(self) -> Tokenizer:
        """What decodes token ids; any thread may use it."""
        return self._tokenizer

    def encode(self, texts: Sequence[bytes], pairs: Sequence[bytes] | None = None) -> list[Encoded | InvalidArgument]:
        """Tokenise rows of `text_input` and, for pairs, `text_pair`.

        Returns:
            For every row its tokens, or the error that says what is wrong with it.
        """
        queries = self._limits.read(texts, pairs)
        sound = [query for query in queries if not isinstance(query, InvalidArgument)]
        encodings = iter(self._tokenizer.encode_batch_fast(sound) if sound else ())
        return [
            query if isinstance(query, InvalidArgument) else self._bounded(row, next(encodings))
            for row, query in enumerate(queries)
        ]

    def encode_all(self, texts: Sequence[bytes], pairs: Sequence[bytes] | None = None) -> list[Encoded]:
        """Tokenise the rows of one request, of which one bad row refuses all.

        Nothing is tokenised where a row is refused for its bytes, and nothing behind the slice of rows in which one has
        too many tokens: of 64 rows of 32 KiB each, which take 1.5 s, that is the first.

        Raises:
            InvalidArgument: the first row that cannot be accepted, and why.
        """
        queries: list[str | tuple[str, str]] = []
        for query in self._limits.read(texts, pairs):
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
    """A `tokenizer.json` without the padding and truncation that it may ask for."""
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
