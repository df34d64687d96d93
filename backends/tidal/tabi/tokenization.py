"""Tokens of a query for each level: its own tokenizer, and the words that pruning left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument
from tidal.requests import Array
from tidal.tabi.manifest import TabiManifest
from tidal.tabi.pruning import kept_words, prune_ids, prune_text
from tidal.text import TextTokenizer
from tidal.text.limits import Limits
from tidal.text.words import EncodedWords, WordTokenizer

# The text of a query, or the two texts of a pair, in UTF-8.
QueryTexts = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PrunedQuery:
    """A query as it is sent to the next level.

    Attributes:
        encoded: Its tokens and words.
        seen: Number of words before pruning; 0 if nothing was to be pruned.
        removed: Number of words that pruning removed.
    """

    encoded: EncodedWords
    seen: int
    removed: int


class LevelTokenizers:
    """The tokenizers of a cascade's levels; levels with the same file and maximum length share one.

    Each level's tokens are cut to its maximum length. A query that is too long for every level is rejected, unless
    `truncate` is set.

    Args:
        manifest: Manifest of the cascade being served.
        version_dir: Folder of the version, with the tokenizers' files.
        truncate: Cut a query that is too long for every level instead of rejecting it.
    """

    def __init__(self, manifest: TabiManifest, version_dir: Path, *, truncate: bool) -> None:
        hashes = {record.path: record.sha256 for record in manifest.files}
        self._hashes = [hashes.get(level.tokenizer.file, level.tokenizer.file) for level in manifest.levels]
        self._lengths = [level.max_length for level in manifest.levels]
        self._bytes = [Limits(length, truncate=True).max_bytes for length in self._lengths]
        shared: dict[tuple[str, int], WordTokenizer] = {}
        for level, key in zip(manifest.levels, zip(self._hashes, self._lengths, strict=True), strict=True):
            if key not in shared:
                shared[key] = WordTokenizer(version_dir / level.tokenizer.file, level.max_length, truncate=True)
        self._tokenizers = [shared[key] for key in zip(self._hashes, self._lengths, strict=True)]
        # The longest level of each tokenizer, the longest of all last: the error of a rejected query is from that one.
        ascending = sorted(zip(self._lengths, self._hashes, manifest.levels, strict=True), key=lambda each: each[0])
        longest = {key: (level.tokenizer.file, length) for length, key, level in ascending}
        self._strict = [] if truncate else [TextTokenizer(version_dir / file, n) for file, n in longest.values()]

    def encode(
        self, level: int, requests: Sequence[Sequence[QueryTexts]]
    ) -> list[list[EncodedWords] | InvalidArgument]:
        """Tokenise the queries of several requests together, for the first level that they go to.

        Args:
            level: Index of the level.
            requests: Texts of each request's queries: the text of each, or its two texts.

        Returns:
            For each request its queries' tokens, or its error: a text is empty, not valid UTF-8 or too long. The error
            names the input and the row.
        """
        together = iter(self._tokenizers[level].encode(*_columns([each for queries in requests for each in queries])))
        results: list[list[EncodedWords] | InvalidArgument] = []
        for queries in requests:
            encoded: list[EncodedWords] = []
            invalid = cut = False
            for texts, item in zip(queries, islice(together, len(queries)), strict=True):
                if isinstance(item, InvalidArgument):
                    invalid = True
                else:
                    encoded.append(item)
                    cut = cut or self._cut(level, item, texts)
            fault = self._refusal(level, queries) if invalid or (cut and self._strict) else None
            results.append(encoded if fault is None else fault)
        return results

    def _refusal(self, level: int, queries: Sequence[QueryTexts]) -> InvalidArgument | None:
        """Return the error of a request, tokenised alone so that the error has the request's own row; None if valid."""
        columns = _columns(queries)
        for item in self._tokenizers[level].encode(*columns):
            if isinstance(item, InvalidArgument):
                return item
        for by_tokenizer in zip(*(each.encode(*columns) for each in self._strict), strict=True):
            refusals = [each for each in by_tokenizer if isinstance(each, InvalidArgument)]
            if len(refusals) == len(by_tokenizer):
                return refusals[-1]
        return None

    def encode_next(
        self,
        below: int,
        level: int,
        encoded: EncodedWords,
        importance: npt.NDArray[np.float32] | None,
        scale: float | None,
    ) -> PrunedQuery:
        """Return a query for the next level, without the words that received little attention at the level below.

        Args:
            below: Index of the level that has answered it.
            level: Index of the next level.
            encoded: Tokens of the query for `below`.
            importance: Attention that each of its tokens received there, [length]; None prunes nothing.
            scale: Scale α of Eq. 5; None prunes nothing.
        """
        same_tokenizer = self._hashes[below] == self._hashes[level]
        if importance is None or scale is None:
            return PrunedQuery(self._whole(below, level, encoded), 0, 0)  # word spans are computed only when needed
        kept = kept_words(encoded, importance, scale)
        seen = len(encoded.spans)
        if kept.all():
            return PrunedQuery(self._whole(below, level, encoded), seen, 0)
        removed = seen - int(kept.sum())
        if same_tokenizer and encoded.separable:
            shorter = prune_ids(encoded, kept)
            if len(shorter.ids) <= self._lengths[level]:
                return PrunedQuery(shorter, seen, removed)
        return PrunedQuery(self._re_encode(level, prune_text(encoded.texts, encoded.spans, kept)), seen, removed)

    def _whole(self, below: int, level: int, encoded: EncodedWords) -> EncodedWords:
        """Return a query for the next level without pruning, with the tokens it has if those are the same."""
        same_tokenizer = self._hashes[below] == self._hashes[level]
        unchanged = same_tokenizer and (
            self._lengths[below] == self._lengths[level] or self._fits(below, level, encoded)
        )
        return encoded if unchanged else self._re_encode(level, encoded.texts)

    def _fits(self, below: int, level: int, encoded: EncodedWords) -> bool:
        texts = tuple(text.encode() for text in encoded.texts)
        return not self._cut(below, encoded, texts) and len(encoded.ids) <= self._lengths[level]

    def _cut(self, level: int, encoded: EncodedWords, texts: QueryTexts) -> bool:
        """Return whether a level's tokens may be fewer than those of the whole query."""
        return len(encoded.ids) >= self._lengths[level] or max(map(len, texts)) > self._bytes[level]

    def _re_encode(self, level: int, texts: tuple[str, ...]) -> EncodedWords:
        (encoded,) = self._tokenizers[level].encode(*_columns([tuple(text.encode() for text in texts)]))
        if isinstance(encoded, InvalidArgument):
            raise encoded
        return encoded


def request_texts(inputs: Mapping[str, Array], *, pairs: bool) -> list[QueryTexts]:
    """Return the texts of a request's rows.

    Args:
        inputs: Input tensors: `text_input` and, for pairs, `text_pair`, BYTES [rows, 1].
        pairs: Whether the cascade compares two texts.

    Raises:
        InvalidArgument: An input is missing or has a wrong shape; the message names it and what is accepted.
    """
    if "text_input" not in inputs:
        raise InvalidArgument("the request has no text_input, which is the text to classify")
    if pairs and "text_pair" not in inputs:
        raise InvalidArgument("the request has no text_pair; this model compares two texts and needs both")
    if not pairs and "text_pair" in inputs:
        raise InvalidArgument("text_pair was sent, but this model reads single texts; accepted is text_input alone")
    names = ("text_input", "text_pair") if pairs else ("text_input",)
    for name in names:
        if inputs[name].ndim != 2 or inputs[name].shape[1] != 1:
            raise InvalidArgument(f"{name} has shape {list(inputs[name].shape)}; expected [rows, 1]")
    if pairs and len(inputs["text_pair"]) != len(inputs["text_input"]):
        raise InvalidArgument(
            f"text_pair has {len(inputs['text_pair'])} rows, text_input {len(inputs['text_input'])}; expected the "
            "same number of rows"
        )
    return list(zip(*(inputs[name][:, 0].tolist() for name in names), strict=True))


def _columns(queries: Sequence[QueryTexts]) -> tuple[list[bytes], list[bytes] | None]:
    """Return the rows of `text_input` and, for pairs, of `text_pair`."""
    return [texts[0] for texts in queries], [texts[1] for texts in queries] if len(queries[0]) > 1 else None
