"""Incremental detokenizing: whole characters only, and in total the same text as decoding all tokens at once.

`DecodeStream` of `tokenizers` is not used because it raises "Invalid prefix" for byte tokens that are not valid UTF-8,
which sampling from a tokenizer with byte fallback (Llama) produces, and does not return an unfinished character at the
end.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

# Decoders replace bytes that are not, or not yet, a valid character by this one.
_REPLACEMENT = "\ufffd"
# An unfinished character has up to 3 bytes, each perhaps a token; some decoders replace each byte separately.
_UNFINISHED = 3
# Prompt tokens decoded together with the first generated token, because some decoders drop a leading space; more, up to
# the maximum, if the first of them are in the middle of a character.
_CONTEXT, _MAX_CONTEXT = 4, 32


class Detokenizer:
    """Decodes the tokens of one generation one by one.

    Each token is decoded together with the last two groups of tokens that ended with a whole character, so the cost per
    token does not grow with the text.

    Args:
        tokenizer: Tokenizer of the model.
        prompt: Token ids of the prompt, at least one.
        lengths: Number of characters of single tokens by id, shared by all texts of a tokenizer; added to.
    """

    __slots__ = ("_ids", "_last", "_lengths", "_sent", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], lengths: dict[int, int] | None = None) -> None:
        self._tokenizer = tokenizer
        self._lengths = {} if lengths is None else lengths
        count = _CONTEXT
        self._ids = list(prompt[-count:])
        while self._decode().startswith(_REPLACEMENT) and count < min(len(prompt), _MAX_CONTEXT):
            count += 1
            self._ids = list(prompt[-count:])
        self._last = len(self._ids)  # index after the tokens of the group before the last
        self._sent = len(self._decode())  # characters of their text that were returned or belong to the prompt

    def push(self, token: int) -> str:
        """Return the text that a token adds, without characters that may be unfinished."""
        self._ids.append(token)
        text = self._decode()
        unfinished = _unfinished(text) if text.endswith(_REPLACEMENT) else 0
        if unfinished and len(self._ids) - self._last <= _UNFINISHED:
            return ""  # these tokens may all be part of one character
        certain = len(text) - unfinished
        added = text[self._sent : certain]
        if added and not unfinished:
            del self._ids[: self._last]
            self._last = len(self._ids)
            self._sent = self._length()
        else:
            self._sent = max(self._sent, certain)
        return added

    def finish(self) -> str:
        """Return the rest once no token follows: an unfinished character, as its replacement."""
        text = self._decode()
        added = text[self._sent :]
        self._sent = len(text)
        return added

    def _length(self) -> int:
        """Number of characters of the tokens; of a single one, which they mostly are, decoded only once."""
        if len(self._ids) != 1:
            return len(self._decode())
        (token,) = self._ids
        length = self._lengths.get(token)
        if length is None:
            length = self._lengths[token] = len(self._decode())
        return length

    def _decode(self) -> str:
        return str(self._tokenizer.decode(self._ids, skip_special_tokens=True))


def _unfinished(text: str) -> int:
    """Number of trailing characters that the next token may still change."""
    count = 0
    while count < min(_UNFINISHED, len(text)) and text[-1 - count] == _REPLACEMENT:
        count += 1
    return count
