"""Words and their tokens: which tokens of a query belong to which word of its raw text."""

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

# What `EncodedWords.words` holds for a token that belongs to no word.
SPECIAL = -1  # put there by the tokenizer's template, such as [CLS] and [SEP]
BLANK = -2  # covers blanks alone, as byte-level tokenizers have for a run of them

# Characters between words for every tokenizer. Other control characters are not among them: BERT's normaliser drops
# them, which joins what stands on both sides.
_BLANKS = "\t\n\r\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_CHUNK = re.compile(f"[^{_BLANKS}]+")
# Scripts written without blanks: Thai, Lao, Tibetan, Myanmar, Khmer, kana, bopomofo and Han.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af]"
)


@dataclass(frozen=True, slots=True)
class Word:
    """A word: characters `start` to `end` of text `part`, 0 for the text and 1 for the text beside it in a pair."""

    part: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Words:
    """The words of one query's raw texts, and its tokens' places in them.

    Args:
        words: INT64 [length], for every token the index of its word in `spans`, or `SPECIAL` or `BLANK`.
        spans: all words of `texts` in order, those too that truncation cut off.
        texts: the raw texts that `spans` count the characters of (1, for a pair 2).
        separable: whether a word's tokens would be the same without the words around it, and nothing was cut off:
            the tokens of what pruning leaves of the texts are then those that it leaves of `ids`.
    """

    words: Integers
    spans: tuple[Word, ...]
    texts: tuple[str, ...]
    separable: bool


class EncodedWords:
    """One query as the model reads it, with the words of its raw texts, which are looked for when they are asked for.

    Most queries of a cascade are answered by its first level, and nobody asks for their words.

    Args:
        ids: INT64 [length], special tokens included.
        type_ids: INT64 [length].
        find: finds the words.
    """

    __slots__ = ("_find", "_found", "ids", "type_ids")

    def __init__(self, ids: Integers, type_ids: Integers, find: Callable[[], Words]) -> None:
        self.ids = ids
        self.type_ids = type_ids
        self._find = find
        self._found: Words | None = None

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
        return self._all.texts

    @property
    def separable(self) -> bool:
        """See `Words`."""
        return self._all.separable

    @property
    def _all(self) -> Words:
        if self._found is None:
            self._found = self._find()
        return self._found


class WordTokenizer:
    """Tokenises queries like `TextTokenizer`, and says which word every token belongs to.

    A word is what stands between blanks; beside characters of scripts written without blanks, what the tokenizer's
    own first step takes for a word. Blanks inside a token join the words beside them.

    Args:
        file: a `tokenizer.json`.
        max_length: longest query in tokens, special tokens included.
        truncate: cut a longer query to `max_length` rather than refuse it.
    """

    def __init__(self, file: Path, max_length: int, *, truncate: bool) -> None:
        self._limits = Limits(max_length, truncate)
        self._tokenizer = open_tokenizer(file)
        # Before truncation is set, which would cut what is compared.
        self._separable = _separable(self._tokenizer)
        if truncate:
            self._tokenizer.enable_truncation(max_length)

    def encode(self, texts: Sequence[bytes], pairs: Sequence[bytes] | None) -> list[EncodedWords | InvalidArgument]:
        """Tokenise rows of `text_input` and, for pairs, `text_pair`.

        Returns:
            For every row its tokens and words, or the error that says what is wrong with it.
        """
        queries = self._limits.read(texts, pairs)
        sound = [query for query in queries if not isinstance(query, InvalidArgument)]
        encodings = iter(self._tokenizer.encode_batch(sound) if sound else ())
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
            find = partial(self._words, raw, read, encoding)
            results.append(EncodedWords(ids, np.asarray(encoding.type_ids, np.int64), find))
        return results

    def _words(self, raw: tuple[bytes, ...], read: tuple[str, ...], encoding: Encoding) -> Words:
        cut = self._limits.truncate and len(encoding) == self._limits.max_length
        special = np.asarray(encoding.special_tokens_mask, np.bool_)
        offsets = _bounds(encoding.offsets)
        words = np.full(len(special), SPECIAL, np.int64)
        spans: list[Word] = []
        whole: list[str] = []
        # A pair's tokens say which text they come from.
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
                # What the limit hid from the tokenizer is one more word, which was never seen.
                whole[part] = raw[part].lstrip().decode("utf-8", "replace")
                spans.append(Word(part, len(text), len(whole[part])))
                cut = True
        return Words(words, tuple(spans), tuple(whole), separable=self._separable and not cut)


def _chunks(text: str) -> tuple[Integers, Integers]:
    """First characters and ends of what stands between blanks."""
    bounds = _bounds(match.span() for match in _CHUNK.finditer(text))
    return bounds[:, 0], bounds[:, 1]


def _bounds(pairs: Iterable[tuple[int, int]]) -> Integers:
    """Pairs of numbers as [pairs, 2]; four times as fast as `np.asarray` makes them."""
    return np.fromiter(chain.from_iterable(pairs), np.int64).reshape(-1, 2)


def _split_unspaced(
    text: str, starts: Integers, ends: Integers, offsets: Integers, groups: Integers, *, cut: bool
) -> tuple[Integers, Integers]:
    """Split chunks beside characters of scripts without blanks, where the tokenizer's own words begin.

    Args:
        text: the text.
        starts: [chunks].
        ends: [chunks].
        offsets: [tokens, 2], of the text's tokens.
        groups: [tokens], the tokenizer's number of each token's word.
        cut: whether tokens may have been cut off at the end; what they covered is then a word of its own.
    """
    # Tokens that share a character cannot be told apart in the text.
    begins = (groups[1:] != groups[:-1]) & (offsets[1:, 0] >= offsets[:-1, 1])
    places = np.unique(np.append(offsets[1:, 0][begins], offsets[-1:, 1] if cut else []).astype(np.int64))
    chunks = np.searchsorted(ends, places, side="right")  # len(ends) behind the last
    inside = np.append(starts, len(text))[chunks] < places
    cuts = np.asarray([place for place in places[inside].tolist() if _separates(text, place)], np.int64)
    return np.sort(np.append(starts, cuts)), np.sort(np.append(ends, cuts))


def _separates(text: str, place: int) -> bool:
    """Whether a tokenizer's word that begins at a place inside a chunk is a word of the text too."""
    # A mark belongs to the character before it, whatever the tokenizer thinks.
    beside = _UNSPACED.search(text, place - 1, place + 1) is not None
    return beside and not unicodedata.category(text[place]).startswith("M")


def _assign(starts: Integers, ends: Integers, offsets: Integers) -> tuple[Integers, Integers, Integers]:
    """Words [words], and for every token [tokens] the index of its word, or -1 where it covers blanks alone."""
    # A token without characters of its own counts as one at its place.
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


# Of several kinds: letters, signs, accents, digits, Han.
_SAMPLES = ("Ab", "c-d", "é", "1.5", "語本", "!")


def _separable(tokenizer: Tokenizer) -> bool:
    """Whether each word's tokens are the same wherever it stands.

    Tokenizers that take blanks for characters of the words behind them (byte-level BPE, SentencePiece) are not: their
    first word differs from the others.
    """
    if not isinstance(tokenizer.model, WordPiece | WordLevel):
        return False
    if any(_CHUNK.fullmatch(token.content) is None for token in tokenizer.get_added_tokens_decoder().values()):
        return False
    apart = [tokenizer.encode(sample, add_special_tokens=False).ids for sample in _SAMPLES]
    together = [number for ids in apart for number in ids]
    blanks = [chr(code) for code in range(0x3001) if not _CHUNK.match(chr(code))]
    return all(tokenizer.encode(blank.join(_SAMPLES), add_special_tokens=False).ids == together for blank in blanks)
