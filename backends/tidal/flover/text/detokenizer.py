"""Text of a generation as its tokens come: never half a character, and the same in all as that of the whole."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

# What decoders put in the place of bytes that are no character, or not yet.
_REPLACEMENT = "\ufffd"
# Of an unfinished character there are up to 3 bytes, each perhaps a token; some decoders replace each by itself.
_UNFINISHED = 3
# Tokens of the prompt that the first token of the answer is decoded with, as some decoders drop a blank at the
# beginning, and how many at most where the first of them are in the middle of a character.
_CONTEXT, _MOST_CONTEXT = 4, 32


class Detokenizer:
    """Decodes one generation's tokens one after the other.

    What a token adds to the text is what decoding it behind the tokens before it adds; these are the last two groups of
    tokens that ended with a whole character, so the work for a token does not grow with the text.

    Args:
        tokenizer: the model's.
        prompt: token ids, at least one.
    """

    __slots__ = ("_ids", "_last", "_sent", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        count = _CONTEXT
        self._ids = list(prompt[-count:])
        while self._decode().startswith(_REPLACEMENT) and count < min(len(prompt), _MOST_CONTEXT):
            count += 1
            self._ids = list(prompt[-count:])
        self._last = len(self._ids)  # of them are before the tokens that made the last whole characters
        self._sent = len(self._decode())  # characters of their text that were given or belong to the prompt

    def push(self, token: int) -> str:
        """The text that a token adds, as far as it is certain."""
        self._ids.append(token)
        text = self._decode()
        unfinished = _unfinished(text)
        if unfinished and len(self._ids) - self._last <= _UNFINISHED:
            return ""  # these few tokens may all be parts of one character
        certain = len(text) - unfinished
        added = text[self._sent : certain]
        if added and not unfinished:
            del self._ids[: self._last]
            self._last = len(self._ids)
            self._sent = len(self._decode())
        else:
            self._sent = max(self._sent, certain)
        return added

    def end(self) -> str:
        """What is left when no token follows: an unfinished character, as its replacement."""
        text = self._decode()
        added = text[self._sent :]
        self._sent = len(text)
        return added

    def _decode(self) -> str:
        return str(self._tokenizer.decode(self._ids, skip_special_tokens=True))


def _unfinished(text: str) -> int:
    """Characters at the end that the next token may still change."""
    count = 0
    while count < min(_UNFINISHED, len(text)) and text[-1 - count] == _REPLACEMENT:
        count += 1
    return count
