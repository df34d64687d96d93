"""A combination of levels, each run on all queries as it would read them after pruning."""

from __future__ import annotations

import itertools
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


class Passes:
    """Runs combinations; the levels' outputs on whole texts are there already.

    Args:
        texts: all queries.
        levels: with their outputs on these.
        rerun: runs a level, by its place in `levels`, on pruned texts.
    """

    def __init__(self, texts: Texts, levels: Sequence[LevelFacts], rerun: Callable[[int, Texts], LevelOutputs]) -> None:
        self._texts, self._levels, self._rerun = texts, levels, rerun

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
        outputs, texts = [first], [self._texts[row] for row in rows.tolist()]
        words, removed = [], []
        for level, following in itertools.pairwise(levels):
            importance = outputs[-1].importance
            assert importance is not None  # see `prunes`
            texts, had, left = prune(self._levels[level].tokenizer, texts, importance, scale)
            words.append(had)
            removed.append(had - left)
            outputs.append(self._rerun(following, texts))
        return Pass(tuple(outputs), words[0], np.cumsum(removed, axis=0))


def prune(
    tokenizer: WordTokenizer, texts: Texts, importance: Importance, scale: float
) -> tuple[list[tuple[str, ...]], Indices, Indices]:
    """What is left of queries for the next level, exactly as in serving.

    Args:
        tokenizer: of the level that read them.
        texts: the queries as it read them.
        importance: as it gave them.
        scale: α of Tabi Eq. 5.

    Returns:
        The pruned texts, and how many words each query had and has left, [n] each.
    """
    pruned, had, left = [], [], []
    for encoded, received in zip(_encode(tokenizer, texts), importance, strict=True):
        kept = kept_words(encoded, received, scale)
        pruned.append(prune_text(encoded.texts, encoded.spans, kept))
        had.append(len(kept))
        left.append(int(kept.sum()))
    return pruned, np.array(had, np.int64), np.array(left, np.int64)


def _encode(tokenizer: WordTokenizer, texts: Texts) -> list[EncodedWords]:
    first, *second = ([text.encode() for text in part] for part in zip(*texts, strict=True))
    encoded = []
    for each in tokenizer.encode(first, second[0] if second else None):
        if isinstance(each, InvalidArgument):
            raise each
        encoded.append(each)
    return encoded
