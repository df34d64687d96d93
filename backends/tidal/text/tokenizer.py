"""Tokenise texts with a model's own fast tokenizer, within the limits of a server."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tidal.answers import texts as decoded_texts
from tidal.errors import InvalidArgument
from tidal.text.limits import Limits
from tidal.text.source import SourceText

_SOME_TEXT = "a"


class Texts(NamedTuple):
    """Texts of one request.

    Attributes:
        texts: Rows of `text_input`.
        pairs: Rows of `text_pair`; None if there are none.
    """

    texts: Sequence[bytes]
    pairs: Sequence[bytes] | None = None


class Encoded(NamedTuple):
    """Tokens of one query.

    Attributes:
        ids: Token ids, of shape [length], including special tokens.
        type_ids: Token types, of shape [length].
        text: Text that they are from; None unless it is needed.
    """

    ids: npt.NDArray[np.int64]
    type_ids: npt.NDArray[np.int64]
    text: SourceText | None = None


class TextTokenizer:
    """Tokenises queries.

    Args:
        file: Path of a `tokenizer.json`.
        max_length: Maximum length of a query in tokens, including special tokens.
        truncate: Whether longer queries are truncated to `max_length` rather than refused.
        offsets: Whether tokens keep their text and their places in it, which takes longer.
        longest: Maximum length of a text in tokens, if longer ones than `max_length` are cut by the caller, for which
            they keep their text; None: `max_length`.
    """

    def __init__(
        self,
        file: Path,
        max_length: int,
        *,
        truncate: bool = False,
        offsets: bool = False,
        longest: int | None = None,
    ) -> None:
        self._limits = Limits(longest or max_length, truncate)
        self._tokenizer = open_tokenizer(file)
        self._offsets = offsets
        if truncate:
            self._tokenizer.enable_truncation(longest or max_length)
        # The post-processor gives types to a text's tokens by its template alone, so one text shows those of all.
        self._singles_have_type_0 = not any(self._tokenizer.encode(_SOME_TEXT).type_ids)
        self.max_length = max_length
        # Upper bound of the ids; ids may have gaps, so it can be more than the number of tokens.
        self.vocab_size: int = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def with_offsets(self) -> TextTokenizer:
        """The same tokenizer, whose tokens keep their text and their places in it."""
        found = copy.copy(self)
        found._offsets = True
        return found

    @property
    def max_bytes(self) -> int:
        """Maximum number of bytes of a text that are read."""
        return self._limits.max_bytes

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
        encoded = iter(self._encode([query for query in queries if not isinstance(query, InvalidArgument)]))
        return [
            query if isinstance(query, InvalidArgument) else self._checked(row, Texts(texts, pairs), next(encoded))
            for row, query in enumerate(queries)
        ]

    def encode_all(
        self, texts: Sequence[bytes], pairs: Sequence[bytes] | None = None, *, special: bool = True
    ) -> list[Encoded]:
        """Tokenise the rows of one request; an invalid row refuses all.

        Args:
            texts: Rows of `text_input`.
            pairs: Rows of `text_pair`; None if there are none.
            special: Whether to add the tokenizer's special tokens, which a rendered chat template has already.

        Raises:
            InvalidArgument: The error of the first row that is not accepted.
        """
        (encoded,) = self.encode_requests([Texts(texts, pairs)], special=special)
        if isinstance(encoded, InvalidArgument):
            raise encoded
        return encoded

    def encode_requests(
        self, requests: Sequence[Texts], *, special: bool = True
    ) -> list[list[Encoded] | InvalidArgument]:
        """Tokenise the rows of several requests in few calls; an invalid row refuses its own request.

        Nothing of a request is tokenised if one of its rows has too many bytes, and nothing after the slice in which
        one has too many tokens: 64 rows of 32 KiB, which would take 1.5 s, are refused after the first.

        Args:
            requests: Texts of each request.
            special: Whether to add the tokenizer's special tokens.

        Returns:
            For each request the tokens of its rows, or the error of its first row that is not accepted.
        """
        results: list[list[Encoded] | InvalidArgument] = []
        queries: list[str | tuple[str, str]] = []
        owners: list[int] = []  # request of each query
        for request, texts in enumerate(requests):
            rows: list[Encoded] | InvalidArgument = []
            decoded = self._limits.decode(texts.texts, texts.pairs)
            for query in decoded:
                if isinstance(query, InvalidArgument):
                    rows = query
                    break
            else:
                queries += cast(list[str | tuple[str, str]], decoded)
                owners += [request] * len(decoded)
            results.append(rows)
        for part in self._limits.slices(queries):
            wanted = [index for index in part if not isinstance(results[owners[index]], InvalidArgument)]
            for index, encoded in zip(wanted, self._encode([queries[index] for index in wanted], special), strict=True):
                rows = results[owners[index]]
                if isinstance(rows, InvalidArgument):
                    continue
                row: Encoded | InvalidArgument = encoded
                if encoded.text is not None or len(encoded.ids) > self._limits.max_length:
                    row = self._checked(len(rows), requests[owners[index]], encoded)
                if isinstance(row, InvalidArgument):
                    results[owners[index]] = row
                else:
                    rows.append(row)
        return results

    def encode_columns(self, columns: list[npt.NDArray[Any]]) -> list[Encoded] | None:
        """Tokenise short valid texts of several requests with few steps per text.

        Args:
            columns: `text_input` of each request, BYTES [rows, 1].

        Returns:
            The tokens of all rows in order; None if they need `encode_requests`.
        """
        queries = None if self._offsets else decoded_texts(columns, self._limits.max_bytes)
        if queries is None:
            return None
        encoded = self._encode(queries)
        longest = min(self.max_length, self._limits.max_length)
        return None if any(len(each.ids) > longest for each in encoded) else encoded

    def _encode(self, queries: Sequence[str | tuple[str, str]], special: bool = True) -> list[Encoded]:
        """Tokenise queries in one call; their arrays are slices of common ones."""
        if not queries:
            return []
        encode = self._tokenizer.encode_batch if self._offsets else self._tokenizer.encode_batch_fast
        encodings = encode(queries, add_special_tokens=special)
        found = [each.ids for each in encodings]
        ends = list(accumulate(map(len, found)))
        ids = np.fromiter(chain.from_iterable(found), np.int64, ends[-1])
        if self._singles_have_type_0 and all(isinstance(query, str) for query in queries):
            type_ids = np.zeros_like(ids)
        else:
            type_ids = np.fromiter(chain.from_iterable(each.type_ids for each in encodings), np.int64, ends[-1])
        encoded = [Encoded(ids[start:end], type_ids[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
        # A text that the caller cuts needs at least to know its own tokens from those of the template.
        kept = len(encodings) if self._offsets else sum(len(each) > self.max_length for each in encodings)
        if kept:
            for index, (query, encoding) in enumerate(zip(queries, encodings, strict=True)):
                if self._offsets or len(encoding) > self.max_length:
                    texts = (query,) if isinstance(query, str) else query
                    encoded[index] = encoded[index]._replace(text=SourceText(texts, encoding))
        return encoded

    def _checked(self, row: int, texts: Texts, encoded: Encoded) -> Encoded | InvalidArgument:
        refusal = self._limits.refusal(row, len(encoded.ids))
        if refusal is not None:
            return refusal
        if encoded.text is not None and self._limits.truncate:
            columns = (texts.texts,) if texts.pairs is None else (texts.texts, texts.pairs)
            encoded.text.skipped = tuple(self._limits.skipped(column[row]) for column in columns)
        return encoded


def open_tokenizer(file: Path) -> Tokenizer:
    """Open a `tokenizer.json` without the padding and truncation that it may configure."""
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
