"""The texts that tokens are from: which text, word and characters each token covers."""

from __future__ import annotations

from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

Integers = npt.NDArray[np.int64]

#: Value of `SourceText.parts` and `SourceText.words` for tokens that belong to no text or to no word.
NONE = -1


class SourceText:
    """The texts of one query, and the text, word and characters of each token, computed at first use.

    Args:
        texts: Texts as they were tokenised: 1, or 2 for a pair.
        encoding: The tokenizer's result for them.

    Attributes:
        texts: Texts as they were tokenised.
        skipped: Number of characters before each text that the client sent and the tokenizer did not get.
    """

    def __init__(self, texts: tuple[str, ...], encoding: Encoding) -> None:
        self._encoding = encoding
        self.texts = texts
        self.skipped = (0,) * len(texts)

    @cached_property
    def parts(self) -> Integers:
        """Index of the text of each token, `NONE` for tokens that the tokenizer's template added; [length]."""
        return np.array([NONE if part is None else part for part in self._encoding.sequence_ids], np.int64)

    @cached_property
    def words(self) -> Integers:
        """Index of the word of each token in its text, by the tokenizer's pre-tokenizer, or `NONE`; [length]."""
        return np.array([NONE if word is None else word for word in self._encoding.word_ids], np.int64)

    @cached_property
    def sizes(self) -> Integers:
        """Number of characters of each token as the vocabulary writes it, prefixes included; [length]."""
        return np.fromiter(map(len, self._encoding.tokens), np.int64, len(self._encoding))

    @cached_property
    def offsets(self) -> Integers:
        """First character and character after the last of each token in its text of `texts`; [length, 2]."""
        pairs = self._encoding.offsets
        return np.fromiter(chain.from_iterable(pairs), np.int64, 2 * len(pairs)).reshape(-1, 2)
