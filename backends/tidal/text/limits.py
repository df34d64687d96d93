"""Limits of the texts that a tokenizer accepts: valid UTF-8 of a bounded length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidal.errors import InvalidArgument

# A token of running text has 4 to 5 bytes, in scripts with multi-byte characters up to about 12. A longer text is not
# a real query, and tokenising it would delay other queries (about 1 ms per 1,000 bytes).
_BYTES_PER_TOKEN = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one model.

    Args:
        max_length: Maximum length of a query in tokens, including special tokens.
        truncate: Whether longer queries are truncated to `max_length` rather than refused.
    """

    max_length: int
    truncate: bool

    @property
    def max_bytes(self) -> int:
        """Maximum number of bytes of a text that are read."""
        return _BYTES_PER_TOKEN * self.max_length

    def decode(
        self, texts: Sequence[bytes], pairs: Sequence[bytes] | None
    ) -> list[str | tuple[str, str] | InvalidArgument]:
        """Decode texts.

        Args:
            texts: Rows of `text_input`.
            pairs: Rows of `text_pair`; None if there are none.

        Returns:
            For each row its text or pair of texts, as tokenizers take them, or its error.
        """
        firsts = [self._decode("text_input", row, text) for row, text in enumerate(texts)]
        if pairs is None:
            return list(firsts)
        seconds = [self._decode("text_pair", row, text) for row, text in enumerate(pairs)]
        queries: list[str | tuple[str, str] | InvalidArgument] = []
        for first, second in zip(firsts, seconds, strict=True):
            if isinstance(first, InvalidArgument):
                queries.append(first)
            elif isinstance(second, InvalidArgument):
                queries.append(second)
            else:
                queries.append((first, second))
        return queries

    def slices(self, queries: Sequence[str | tuple[str, str]]) -> Iterator[range]:
        """Yield ranges of one query, or of several with at most `max_bytes` characters together."""
        sizes = [len(query) if isinstance(query, str) else sum(map(len, query)) for query in queries]
        if sizes and sum(sizes) <= self.max_bytes:
            yield range(len(sizes))
            return
        start = size = 0
        for index, added in enumerate(sizes):
            if index > start and size + added > self.max_bytes:
                yield range(start, index)
                start, size = index, 0
            size += added
        if start < len(queries):
            yield range(start, len(queries))

    def refusal(self, row: int, length: int) -> InvalidArgument | None:
        """Return the error for a row of `length` tokens; None if it is accepted."""
        if length <= self.max_length:
            return None
        return InvalidArgument(f"text_input row {row} has {length} tokens; this model reads at most {self.max_length}")

    def skipped(self, text: bytes) -> int:
        """Return the number of leading blanks of a text that are not read, since it is longer than `max_bytes`."""
        # Blanks of `bytes.lstrip` are characters of one byte.
        return len(text) - len(text.lstrip()) if len(text) > self.max_bytes else 0

    def _decode(self, name: str, row: int, text: bytes) -> str | InvalidArgument:
        skipped = 0
        if len(text) > self.max_bytes:
            if not self.truncate:
                return InvalidArgument(
                    f"{name} row {row} has {len(text)} bytes; this model reads at most {self.max_length} tokens, "
                    f"for which it accepts up to {self.max_bytes} bytes"
                )
            # Leading blanks must not count against the limit.
            skipped = self.skipped(text)
            text = _cut(text[skipped:], self.max_bytes)
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError as error:
            return InvalidArgument(f"{name} row {row} is not valid UTF-8 at byte {skipped + error.start}")
        if not decoded.strip():
            return InvalidArgument(f"{name} row {row} is empty; accepted: a text of at least one word")
        return decoded


def _cut(text: bytes, limit: int) -> bytes:
    """Return the first bytes of a UTF-8 text, at most `limit`, without splitting a character."""
    if len(text) <= limit:
        return text
    # A character has at most 3 bytes after its first; more are not valid UTF-8, which decoding will detect.
    end = limit
    while end > limit - 3 and text[end] & 0xC0 == 0x80:
        end -= 1
    return text[:end]
