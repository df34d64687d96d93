"""What a tokenizer accepts: texts of a bounded length in valid UTF-8, and the errors that say so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidal.errors import InvalidArgument

# A token of running text takes 4 to 5 bytes, in scripts of wide characters up to about 12. A longer text cannot be
# an honest query, and tokenising it would hold up everybody else's (1 ms a 1,000 bytes or so).
_BYTES_PER_TOKEN = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest query that a model reads.

    Args:
        max_length: longest query in tokens, special tokens included.
        truncate: cut a longer query to `max_length` rather than refuse it.
    """

    max_length: int
    truncate: bool

    @property
    def max_bytes(self) -> int:
        """Bytes of a text that are looked at."""
        return _BYTES_PER_TOKEN * self.max_length

    def read(
        self, texts: Sequence[bytes], pairs: Sequence[bytes] | None
    ) -> list[str | tuple[str, str] | InvalidArgument]:
        """Decode rows of `text_input` and, for pairs, `text_pair`.

        Returns:
            For every row its text or its two texts, as a tokenizer takes them, or what is wrong with it.
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

    def slices(self, queries: Sequence[str | tuple[str, str]]) -> Iterator[list[str | tuple[str, str]]]:
        """The queries in order, as many at a time as have together the characters that one may have, at least one."""
        part: list[str | tuple[str, str]] = []
        size = 0
        for query in queries:
            added = len(query) if isinstance(query, str) else sum(map(len, query))
            if part and size + added > self.max_bytes:
                yield part
                part, size = [], 0
            part.append(query)
            size += added
        if part:
            yield part

    def refusal(self, row: int, length: int) -> InvalidArgument | None:
        """What is wrong with a row of so many tokens, if anything is."""
        if length <= self.max_length:
            return None
        return InvalidArgument(f"text_input row {row} has {length} tokens; this model reads at most {self.max_length}")

    def _decode(self, name: str, row: int, text: bytes) -> str | InvalidArgument:
        skipped = 0
        if len(text) > self.max_bytes:
            if not self.truncate:
                return InvalidArgument(
                    f"{name} row {row} has {len(text)} bytes; this model reads at most {self.max_length} tokens, "
                    f"which {self.max_bytes} bytes bound"
                )
            # Blanks in front must not use up what is read.
            kept = text.lstrip()
            skipped, text = len(text) - len(kept), _cut(kept, self.max_bytes)
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError as error:
            return InvalidArgument(f"{name} row {row} is not valid UTF-8 at byte {skipped + error.start}")
        if not decoded.strip():
            return InvalidArgument(f"{name} row {row} is empty; accepted is a text of at least one word")
        return decoded


def _cut(text: bytes, limit: int) -> bytes:
    """The first bytes of a UTF-8 text, at most `limit`, never half a character."""
    if len(text) <= limit:
        return text
    # A character has at most 3 bytes after its first: more of them are not UTF-8, which decoding will tell.
    end = limit
    while end > limit - 3 and text[end] & 0xC0 == 0x80:
        end -= 1
    return text[:end]
