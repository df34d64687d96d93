"""A combination of levels, each run on all queries as it would read them after pruning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument
from tidal.tabi.pruning import kept_words, prune_text
from tidal.text.words import EncodedWords, WordTokenizer
from tidal_builders.tabi.outputs import Importance, LevelFacts, LevelOutputs

Texts = Sequence[tuple[str, ...]]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pass:
    """What the levels of a combination said in turn.

    Attributes:
        outputs: of each level, on the n queries as it read them.
        words: how many words each query has; 0 where nothing is pruned, [n].
        removed: how many of them the second level and each further one did not get, [levels - 1, n].
    """

    outputs: tuple[LevelOutputs, ...]
    words: Indices
    removed: Indices

    def take(self, rows: Indices) -> Pass:
        """What they said to some of the queries."""
        return Pass(tuple(each.take(rows) for each in self.outputs), self.words[rows], self.removed[:, rows])


@dataclass(frozen=True, slots=True)
class _Left:
    """Pruned texts, and how many words each query had before and has now, [n]."""

    texts: list[tuple[str, ...]]
    had: Indices
    has: Indices


class Passes:
    """Runs combinations; the levels' outputs on whole texts are there already.

    Args:
        texts: all queries.
        levels: with their outputs on these.
        rerun: runs a level, by its place in `levels`, on pruned texts.
    """

    def __init__(self, texts: Texts, levels: Sequence[LevelFacts], rerun: Callable[[int, Texts], LevelOutputs]) -> None:
        self._texts, self._levels, self._rerun = texts, levels, rerun
        # Whole texts as a level reads them, and what levels that ran in turn leave of queries at a scale: scales and
        # combinations share them.
        self._read: dict[int, list[EncodedWords]] = {}
        self._left: dict[tuple[tuple[int, ...], float, bytes], _Left] = {}

    def alone(self, level: int) -> LevelOutputs:
        """A level's outputs on all whole texts."""
        return self._levels[level].outputs

    def prunes(self, levels: Sequence[int]) -> bool:
        """Whether all levels but the last say which words matter."""
        return all(self._levels[level].outputs.importance is not None for level in levels[:-1])

    def run(self, levels: Sequence[int], scale: float | None, rows: Indices) -> Pass:
        """The levels in turn on some queries; each reads what the importance at the one before it leaves.

        Args:
            levels: places in the sequence of levels.
            scale: α of Tabi Eq. 5; None prunes nothing.
            rows: indices of the queries.

        Raises:
            InvalidArgument: a text cannot be read by a level's tokenizer.
        """
        first = self._levels[levels[0]].outputs.take(rows)
        none = np.zeros((len(levels) - 1, len(rows)), np.int64)
        if scale is None:
            rest = [self._levels[level].outputs.take(rows) for level in levels[1:]]
            return Pass((first, *rest), none.sum(axis=0), none)
        outputs, left = [first], list[_Left]()
        for place, following in enumerate(levels[1:], start=1):
            key = tuple(levels[:place]), scale, rows.tobytes()
            if key not in self._left:
                queries = self._queries(levels[place - 1], rows, left)
                importance = outputs[-1].importance
                assert importance is not None  # see `prunes`
                self._left[key] = _prune(queries, importance, scale)
            left.append(self._left[key])
            outputs.append(self._rerun(following, left[-1].texts))
        return Pass(tuple(outputs), left[0].had, np.cumsum([each.had - each.has for each in left], axis=0))

    def _queries(self, level: int, rows: Indices, left: Sequence[_Left]) -> list[EncodedWords]:
        """The queries as a level reads them: whole, or what the one before it has left."""
        tokenizer = self._levels[level].tokenizer
        if left:
            return _encode(tokenizer, left[-1].texts)
        if level not in self._read:
            self._read[level] = _encode(tokenizer, self._texts)
        return [self._read[level][row] for row in rows.tolist()]


def _prune(queries: Sequence[EncodedWords], importance: Importance, scale: float) -> _Left:
    """What is left of queries for the next level, exactly as in serving; importance as at the level that read them."""
    texts, had, has = [], [], []
    for encoded, received in zip(queries, importance, strict=True):
        kept = kept_words(encoded, received, scale)
        texts.append(prune_text(encoded.texts, encoded.spans, kept))
        had.append(len(kept))
        has.append(int(kept.sum()))
    return _Left(texts, np.array(had, np.int64), np.array(has, np.int64))


def _encode(tokenizer: WordTokenizer, texts: Texts) -> list[EncodedWords]:
    first, *second = ([text.encode() for text in part] for part in zip(*texts, strict=True))
    encoded = []
    for each in tokenizer.encode(first, second[0] if second else None):
        if isinstance(each, InvalidArgument):
            raise each
        encoded.append(each)
    return encoded
