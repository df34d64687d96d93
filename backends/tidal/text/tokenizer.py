"""A model's own fast tokenizer: texts in, token ids out, with the limits that a server needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tidal.errors import InvalidArgument

# A token of running text takes 4 to 5 bytes, in scripts of wide characters up to about 12. A longer text cannot be
# an honest query, and tokenising it would hold up everybody else's (1 ms a 1,000 bytes or so).
_BYTES_PER_TOKEN = 64


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
        self._tokenizer = Tokenizer.from_file(str(file))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        if truncate:
            self._tokenizer.enable_truncation(max_length)
        self._truncate = truncate
        self.max_length = max_length
        self.max_bytes = _BYTES_PER_TOKEN * max_length
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, texts: Sequence[bytes], pairs: Sequence[bytes] | None = None) -> list[Encoded | InvalidArgument]:
        """Tokenise rows of `text_input` and, for pairs, `text_pair`.

        Returns:
            For every row its tokens, or the error that says what is wrong with it.
        """
        decoded = [self._decode("text_input", row, text) for row, text in enumerate(texts)]
        second = None if pairs is None else [self._decode("text_pair", row, text) for row, text in enumerate(pairs)]
        results: list[Encoded | InvalidArgument] = []
        inputs: list[str | tuple[str, str]] = []
        for row, text in enumerate(decoded):
            pair = "" if second is None else second[row]
            if isinstance(text, InvalidArgument):
                results.append(text)
            elif isinstance(pair, InvalidArgument):
                results.append(pair)
            else:
                results.append(_PENDING)
                inputs.append(text if second is None else (text, pair))
        encodings = iter(self._tokenizer.encode_batch_fast(inputs) if inputs else ())
        for row, result in enumerate(results):
            if result is _PENDING:
                results[row] = self._bounded(row, next(encodings))
        return results

    def _decode(self, name: str, row: int, text: bytes) -> str | InvalidArgument:
        skipped = 0
        if len(text) > self.max_bytes:
            if not self._truncate:
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

    def _bounded(self, row: int, encoding: object) -> Encoded | InvalidArgument:
        ids = np.asarray(encoding.ids, np.int64)  # type: ignore[attr-defined]
        if len(ids) > self.max_length:
            return InvalidArgument(
                f"text_input row {row} has {len(ids)} tokens; this model reads at most {self.max_length}"
            )
        return Encoded(ids, np.asarray(encoding.type_ids, np.int64))  # type: ignore[attr-defined]


# Marks a row whose text is sound and waits for the tokenizer.
_PENDING = Encoded(np.empty(0, np.int64), np.empty(0, np.int64))


def _cut(text: bytes, limit: int) -> bytes:
    """The first bytes of a UTF-8 text, at most `limit`, never half a character."""
    if len(text) <= limit:
        return text
    # A character has at most 3 bytes after its first: more of them are not UTF-8, which decoding will tell.
    end = limit
    while end > limit - 3 and text[end] & 0xC0 == 0x80:
        end -= 1
    return text[:end]
