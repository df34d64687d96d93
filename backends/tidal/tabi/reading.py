"""How each level reads a query: with its own tokenizer, and what pruning left of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

Texts = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """A query as the next level reads it.

    Attributes:
        encoded: its tokens and words.
        seen: words that it had; 0 where nothing was to be pruned.
        removed: how many of them pruning removed.
    """

    encoded: EncodedWords
    seen: int
    removed: int


class Readers:
    """The tokenizers of a cascade's levels; levels with the same file and limit share one.

    Each level reads as much of a query as fits it. A query that no level reads as a whole is refused, unless queries
    are to be cut.

    Args:
        manifest: of the cascade.
        version_dir: where its tokenizers' files lie.
        truncate: cut a longer query instead of refusing it.
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
        # The longest level of each tokenizer, the longest of all at the end: what refuses a query is told by that.
        ascending = sorted(zip(self._lengths, self._hashes, manifest.levels, strict=True), key=lambda each: each[0])
        longest = {key: (level.tokenizer.file, length) for length, key, level in ascending}
        self._strict = [] if truncate else [TextTokenizer(version_dir / file, n) for file, n in longest.values()]

    def first(self, level: int, queries: Sequence[Texts]) -> list[EncodedWords]:
        """Queries as a level reads them before any other has.

        Args:
            level: index of the level.
            queries: of each query its text, or its two texts.

        Raises:
            InvalidArgument: a text is empty, not valid UTF-8 or too long; names the input and the row.
        """
        read = self._encode(level, queries)
        if self._strict and any(self._cut(level, each, texts) for each, texts in zip(read, queries, strict=True)):
            columns = _columns(queries)
            for by_tokenizer in zip(*(each.encode(*columns) for each in self._strict), strict=True):
                refusals = [each for each in by_tokenizer if isinstance(each, InvalidArgument)]
                if len(refusals) == len(by_tokenizer):
                    raise refusals[-1]
        return read

    def next(
        self,
        below: int,
        level: int,
        encoded: EncodedWords,
        importance: npt.NDArray[np.float32] | None,
        scale: float | None,
    ) -> Pruned:
        """A query as the next level reads it: without the words that the level below paid no attention to.

        Args:
            below: index of the level that has read it.
            level: index of the level that will.
            encoded: as `below` read it.
            importance: [length], attention that each of its tokens received there; None prunes nothing.
            scale: α of Eq. 5; None prunes nothing.
        """
        alike = self._hashes[below] == self._hashes[level]
        if importance is None or scale is None:
            return Pruned(self._whole(below, level, encoded), 0, 0)  # its words are found only where they are read
        kept = kept_words(encoded, importance, scale)
        seen = len(encoded.spans)
        if kept.all():
            return Pruned(self._whole(below, level, encoded), seen, 0)
        removed = seen - int(kept.sum())
        if alike and encoded.separable:
            shorter = prune_ids(encoded, kept)
            if len(shorter.ids) <= self._lengths[level]:
                return Pruned(shorter, seen, removed)
        return Pruned(self._again(level, prune_text(encoded.texts, encoded.spans, kept)), seen, removed)

    def _whole(self, below: int, level: int, encoded: EncodedWords) -> EncodedWords:
        alike = self._hashes[below] == self._hashes[level]
        as_it_is = alike and (self._lengths[below] == self._lengths[level] or self._fits(below, level, encoded))
        return encoded if as_it_is else self._again(level, encoded.texts)

    def _fits(self, below: int, level: int, encoded: EncodedWords) -> bool:
        texts = tuple(text.encode() for text in encoded.texts)
        return not self._cut(below, encoded, texts) and len(encoded.ids) <= self._lengths[level]

    def _cut(self, level: int, encoded: EncodedWords, texts: Texts) -> bool:
        """Whether a level may have read less than the whole query."""
        return len(encoded.ids) >= self._lengths[level] or max(map(len, texts)) > self._bytes[level]

    def _again(self, level: int, texts: tuple[str, ...]) -> EncodedWords:
        return self._encode(level, [tuple(text.encode() for text in texts)])[0]

    def _encode(self, level: int, queries: Sequence[Texts]) -> list[EncodedWords]:
        read = []
        for item in self._tokenizers[level].encode(*_columns(queries)):
            if isinstance(item, InvalidArgument):
                raise item
            read.append(item)
        return read


def read_texts(inputs: Mapping[str, Array], *, pairs: bool) -> list[Texts]:
    """The texts of a request's rows.

    Args:
        inputs: `text_input` and, for pairs, `text_pair`, BYTES [rows, 1].
        pairs: whether the cascade compares two texts.

    Raises:
        InvalidArgument: names the input, what came and what is accepted.
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
            raise InvalidArgument(f"{name} has shape {list(inputs[name].shape)}; accepted is [rows, 1]")
    if pairs and len(inputs["text_pair"]) != len(inputs["text_input"]):
        raise InvalidArgument(
            f"text_pair has {len(inputs['text_pair'])} rows, text_input {len(inputs['text_input'])}; accepted is one "
            "for each"
        )
    return list(zip(*(inputs[name][:, 0].tolist() for name in names), strict=True))


def _columns(queries: Sequence[Texts]) -> tuple[list[bytes], list[bytes] | None]:
    """Rows of `text_input` and of `text_pair`."""
    return [texts[0] for texts in queries], [texts[1] for texts in queries] if len(queries[0]) > 1 else None
