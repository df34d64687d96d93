"""Text of single tokens, which together are the text of a generation."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from tidal.requests import Array


class TokenTexts:
    """Texts of a model's tokens; any thread may use it.

    A token that is a part of a character has no text: it is written as OpenAI does, `bytes:` and each byte as `\\xe2`.

    Args:
        tokenizer: Tokenizer of the model.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes: LLTokenizer | None = None
        self._texts: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def of(self, tokens: Array) -> Array:
        """Return the texts of tokens as UTF-8, in an array of the same shape.

        Args:
            tokens: Token ids.
        """
        texts: Any = np.empty(tokens.size, object)
        with self._lock:
            texts[:] = [self._text(token) for token in tokens.ravel().tolist()]
        return np.asarray(texts.reshape(tokens.shape))

    def _text(self, token: int) -> bytes:
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._read(token)
        return text

    def _read(self, token: int) -> bytes:
        named = self._tokenizer.id_to_token(token)
        if named is None:  # models round the size of their vocabulary up
            return b""
        if self._bytes is None:  # only requests for log probabilities need it
            self._bytes = LLTokenizer(self._tokenizer.to_str())
        content = bytes(self._bytes.decode_bytes([token]))
        if not content:  # a special token
            return str(named).encode()
        try:
            content.decode()
        except UnicodeDecodeError:
            return b"bytes:" + "".join(f"\\x{byte:02x}" for byte in content).encode()
        return content
