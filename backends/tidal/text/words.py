"""Align tokens with words: which tokens of a query belong to which word of its raw text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordLevel, WordPiece

from tidal.errors import InvalidArgument
from tidal.text.limits import Limits
from tidal.text.tokenizer import open_tokenizer

Integers = npt.NDArray[np.int64]

# Values of `EncodedWords.words` for tokens that belong to no word.
SPECIAL = -1  # added by the tokenizer's template, such as [CLS] and [SEP]
BLANK = -2  # covers only blanks, as tokens of byte-level tokenizers may

# Characters that separate words for every tokenizer. Other control characters do not: BERT's normaliser removes them,
# which joins the text on both sides.
_BLANKS = "\t\n\r\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_CHUNK = re.compile(f"[^{_BLANKS}]+")
# Scripts written without blanks: Thai, Lao, Tibetan, Myanmar, Khmer, kana, bopomofo and Han.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af]"
)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a query.

    Attributes:
        part: Index of its text: 0, or 1 for the second text of a pair.
        start: First character.
        end: Character after the last.
    """

    part: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Words:
    """Words of one query's raw texts, and the word of each token.

    Args:
        words: Index of each token's word in `spans`, `SPECIAL` or `BLANK`; shape [length].
        spans: All words of `texts` in order, including those that truncation removed.
        texts: Raw texts that `spans` refer to: 1, or 2 for a pair.
        separable: Whether each word's tokens are independent of the words around it, and nothing was truncated: the
            tokens of a pruned text are then a subset of `ids`.
    """

    words: Integers
    spans: tuple[Word, ...]
    texts: tuple[str, ...]
    separable: bool


class EncodedWords:
    """Tokens of one query, and the words of its raw texts, which are computed at first use.

    Most queries of a cascade are answered by its first level, which does not need the words.

    Args:
        ids: Token ids, of shape [length], including special tokens.
        type_ids: Token types, of shape [length].
        align: Computes the words.
        texts: Raw texts if they are known without the words; None if they are not.
    """

    __slots__ = ("_align", "_aligned", "_texts", "ids", "type_ids")

    def __init__(
        self, ids: Integers, type_ids: Integers, align: Callable[[], Words], texts: tuple[str, ...] | None = None
    ) -> None:
        self.ids = ids
        self.type_ids = type_ids
        self._align = align
        self._texts = texts
        self._aligned: Words | None = None

    @property
    def words(self) -> Integers:
        """See `Words`."""
        return self._all.words

    @property
    def spans(self) -> tuple[Word, ...]:
        """See `Words`."""
        return self._all.spans

    @property
    def texts(self) -> tuple[str, ...]:
        """See `Words`."""
        return self._all.texts if self._texts is None else self._texts

    @property
    def separable(self) -> bool:
        """See `Words`."""
        return self._all.separable

    @property
    def _all(self) -> Words:
        if self._aligned is None:
            self._aligned = self._align()
        return self._aligned


class WordTokenizer:
    """Tokenises queries like `TextTokenizer`, and assigns each token to a word.

    A word is the text between blanks; next to characters of scripts written without blanks, it is a word of the
    tokenizer's pre-tokenizer. Blanks inside a token join the words on both sides.

    Args:
        file: Path of a `tokenizer.json`.
        max_length: Maximum length of a query in tokens, including special tokens.
        truncate: Whether longer queries are truncated to `max_length` rather than refused.
    """

    def __init__(self, file: Path, max_length: int, *, truncate: bool) -> None:
        self._limits = Limits(max_length, truncate)
        self._tokenizer = open_tokenizer(file)
        # Before truncation is enabled, which would change the comparison.
        self._separable = _separable(self._tokenizer)
        if truncate:
            self._tokenizer.enable_truncation(max_length)

    def encode(self, texts: Sequence[bytes], pairs: Sequence[bytes] | None) -> list[EncodedWords | InvalidArgument]:
        """Tokenise texts.

        Args:
            texts: Rows of `text_input`.
            pairs: Rows of `text_pair`; None if there are none.

        Returns:
            For each row its tokens and words, or its error.
        """
        queries = self._limits.decode(texts, pairs)
        valid = [query for query in queries if not isinstance(query, InvalidArgument)]
        encodings = iter(self._tokenizer.encode_batch(valid) if valid else ())
        results: list[EncodedWords | InvalidArgument] = []
        for row, query in enumerate(queries):
            if isinstance(query, InvalidArgument):
                results.append(query)
                continue
            encoding = next(encodings)
            ids = np.asarray(encoding.ids, np.int64)
            refusal = self._limits.refusal(row, len(ids))
            if refusal is not None:
                results.append(refusal)
                continue
            read = (query,) if isinstance(query, str) else query
            raw = (texts[row],) if pairs is None else (texts[row], pairs[row])
            align = partial(self._words, raw, read, encoding)
            whole = max(map(len, raw)) <= self._limits.max_bytes
            results.append(EncodedWords(ids, np.asarray(encoding.type_ids, np.int64), align, read if whole else None))
        return results

    def _words(self, raw: tuple[bytes, ...], read: tuple[str, ...], encoding: Encoding) -> Words:
        cut = self._limits.truncate and len(encoding) == self._limits.max_length
        special = np.asarray(encoding.special_tokens_mask, np.bool_)
        offsets = _bounds(encoding.offsets)
        words = np.full(len(special), SPECIAL, np.int64)
        spans: list[Word] = []
        whole: list[str] = []
        # Index of the text that each token of a pair comes from.
        parts = np.asarray([-1 if part is None else part for part in encoding.sequence_ids]) if len(read) > 1 else None
        for part, text in enumerate(read):
            mine = np.flatnonzero(~special if parts is None else ~special & (parts == part))
            starts, ends = _chunks(text)
            if not text.isascii() and _UNSPACED.search(text):
                groups = np.asarray([-1 if word is None else word for word in encoding.word_ids], np.int64)[mine]
                starts, ends = _split_unspaced(text, starts, ends, offsets[mine], groups, cut=cut)
            starts, ends, own = _assign(starts, ends, offsets[mine])
            words[mine] = np.where(own >= 0, own + len(spans), BLANK)
            spans += [Word(part, start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
            whole.append(text)
            if len(raw[part]) > self._limits.max_bytes:
                # The text beyond the limit, which the tokenizer did not see, counts as one more word.
                whole[part] = raw[part].lstrip().decode("utf-8", "replace")
                spans.append(Word(part, len(text), len(whole[part])))
                cut = True
        return Words(words, tuple(spans), tuple(whole), separable=self._separable and not cut)


def _chunks(text: str) -> tuple[Integers, Integers]:
    """Return the starts and ends of the texts between blanks, each of shape [chunks]."""
    bounds = _bounds(match.span() for match in _CHUNK.finditer(text))
    return bounds[:, 0], bounds[:, 1]


def _bounds(pairs: Iterable[tuple[int, int]]) -> Integers:
    """Return pairs of numbers as an array of shape [pairs, 2], four times as fast as `np.asarray`."""
    return np.fromiter(chain.from_iterable(pairs), np.int64).reshape(-1, 2)


def _split_unspaced(
    text: str, starts: Integers, ends: Integers, offsets: Integers, groups: Integers, *, cut: bool
) -> tuple[Integers, Integers]:
    """Split chunks at the tokenizer's word boundaries next to characters of scripts without blanks.

    Args:
        text: Text that is split.
        starts: First character of each chunk, of shape [chunks].
        ends: Character after the last of each chunk, of shape [chunks].
        offsets: First character and end of each token, of shape [tokens, 2].
        groups: The tokenizer's word index of each token, of shape [tokens].
        cut: Whether tokens may have been truncated at the end; the text that they covered is then a separate word.
    """
    # Tokens that share a character cannot be separated in the text.
    begins = (groups[1:] != groups[:-1]) & (offsets[1:, 0] >= offsets[:-1, 1])
    places = np.unique(np.append(offsets[1:, 0][begins], offsets[-1:, 1] if cut else []).astype(np.int64))
    chunks = np.searchsorted(ends, places, side="right")  # len(ends) after the last chunk
    inside = np.append(starts, len(text))[chunks] < places
    cuts = np.asarray([place for place in places[inside].tolist() if _separates(text, place)], np.int64)
    return np.sort(np.append(starts, cuts)), np.sort(np.append(ends, cuts))


def _separates(text: str, place: int) -> bool:
    """Whether a word of the tokenizer that begins inside a chunk also begins a word of the text."""
    # A combining mark belongs to the character before it, also if the tokenizer splits there.
    beside = _UNSPACED.search(text, place - 1, place + 1) is not None
    return beside and not unicodedata.category(text[place]).startswith("M")


def _assign(starts: Integers, ends: Integers, offsets: Integers) -> tuple[Integers, Integers, Integers]:
    """Assign tokens to words.

    Returns:
        Starts and ends of the words, of shape [words], and for each token the index of its word, of shape [tokens], -1
        if it covers only blanks.
    """
    # A token without characters counts as one character at its position.
    behind = np.maximum(offsets[:, 1], offsets[:, 0] + 1)
    first = np.searchsorted(ends, offsets[:, 0], side="right")
    last = np.searchsorted(starts, behind, side="left") - 1
    across = first < last
    if across.any():
        joined = np.zeros(len(starts), np.bool_)
        for one, other in zip(first[across].tolist(), last[across].tolist(), strict=True):
            joined[one + 1 : other + 1] = True
        group = np.cumsum(~joined) - 1
        starts, ends = starts[~joined], ends[np.append(~joined[1:], True)]
        first, last = np.append(group, len(starts))[first], np.append(group, -1)[last]
    return starts, ends, np.where(first == last, first, -1)


# Words of several kinds: letters, punctuation, accents, digits, Han.
_SAMPLES = ("Ab", "c-d", "é", "1.5", "語本", "!")


def _separable(tokenizer: Tokenizer) -> bool:
    """Whether the tokens of a word do not depend on its position.

    For tokenizers that attach blanks to the following word (byte-level BPE, SentencePiece) they do: the first word
    differs from the others.
    """
    if not isinstance(tokenizer.model, WordPiece | WordLevel):
        return False
    if any(_CHUNK.fullmatch(token.content) is None for token in tokenizer.get_added_tokens_decoder().values()):
        return False
    apart = [tokenizer.encode(sample, add_special_tokens=False).ids for sample in _SAMPLES]
    together = [number for ids in apart for number in ids]
    blanks = [chr(code) for code in range(0x3001) if not _CHUNK.match(chr(code))]
    return all(tokenizer.encode(blank.join(_SAMPLES), add_special_tokens=False).ids == together for blank in blanks)
