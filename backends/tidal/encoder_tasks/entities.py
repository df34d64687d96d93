"""Entities of token classifiers: label schemes, and the aggregation of tokens as in transformers' pipeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument
from tidal.serving.softmax import softmax

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

Aggregation = Literal["none", "simple", "first", "average", "max"]
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
# The label of tokens outside entities, which transformers' pipeline leaves out.
_OUTSIDE = "O"
# Prefixes of BILOU, BIOES and BMES, which the pipeline does not know: a label's part of its entity.
_LAST, _SINGLE, _INSIDE = frozenset("LE"), frozenset("US"), frozenset("BIM")


@dataclass(frozen=True, slots=True)
class LabelScheme:
    """How the labels of tokens form entities.

    Labels `B-x` and `I-x` (IOB1, IOB2), and labels without a prefix, are grouped as transformers' pipeline does:
    consecutive tokens of one tag are an entity, and `B-x` begins another. If any tag has labels of BILOU or BIOES
    (`L-x` or `E-x`, `U-x` or `S-x`, beside `B-x` or `I-x`), those close their entity. No scheme has to be complete: a
    token that continues nothing begins an entity.

    Attributes:
        names: Names of the labels.
        groups: Names of the entities that the labels belong to.
        tags: Number of each label's tag, [labels]; equal for labels of one entity.
        begins: Whether a label begins an entity, [labels].
        ends: Whether a label ends an entity, [labels].
        outside: Whether tokens of a label are left out, [labels].
        outside_groups: Whether entities of a label are left out, [labels].
    """

    names: tuple[str, ...]
    groups: tuple[str, ...]
    tags: Integers
    begins: Flags
    ends: Flags
    outside: Flags
    outside_groups: Flags

    @classmethod
    def of(cls, labels: Sequence[str]) -> LabelScheme:
        """Return the scheme of a model's labels.

        Args:
            labels: Name of each label, in the order of the logits.

        Raises:
            InvalidArgument: A label has no name.
        """
        if "" in labels:
            raise InvalidArgument(
                f"label {list(labels).index('')} of {len(labels)} has no name; expected a name for each label: set "
                "`labels` in the spec, or id2label in the source model's config.json"
            )
        closed = _closed_tags(labels)
        parsed = [_parsed(label, closed) for label in labels]
        numbers = {tag: number for number, tag in enumerate(dict.fromkeys(tag for tag, _, _ in parsed))}
        # As the pipeline names groups: also a label without prefix loses what precedes its first dash.
        groups = tuple(label.split("-", 1)[-1] for label in labels)
        return cls(
            tuple(labels),
            groups,
            np.array([numbers[tag] for tag, _, _ in parsed], np.int64),
            np.array([begins for _, begins, _ in parsed]),
            np.array([ends for _, _, ends in parsed]),
            np.array([label == _OUTSIDE for label in labels]),
            np.array([group == _OUTSIDE for group in groups]),
        )


def _closed_tags(labels: Sequence[str]) -> bool:
    """Whether the labels are those of BILOU, BIOES or BMES: a tag has labels of its first and of its last token."""
    prefixes: dict[str, set[str]] = {}
    for label in labels:
        if label[1:2] == "-":
            prefixes.setdefault(label[2:], set()).add(label[0])
    return any(own & _INSIDE and own & (_LAST | _SINGLE) for own in prefixes.values())


def _parsed(label: str, closed: bool) -> tuple[str, bool, bool]:
    """Return the tag of a label, and whether it begins and ends an entity."""
    prefix, tag = (label[0], label[2:]) if label[1:2] == "-" else ("", label)
    if closed and prefix and prefix in _INSIDE | _LAST | _SINGLE:
        return tag, prefix == "B" or prefix in _SINGLE, prefix in _LAST | _SINGLE
    return (tag, prefix == "B", False) if prefix in ("B", "I") else (label, False, False)


def continued_words(
    ids: Integers, offsets: Integers, text: str, sizes: Integers | None, unknown_id: int | None
) -> Flags:
    """Return whether each token continues the word of the token before it, by the rule of transformers' pipeline.

    With a prefix of continuing pieces, as WordPiece has: a token that is longer or shorter than its characters in the
    text. Without: a token with no space before it. A token that the vocabulary does not know begins a word.

    Args:
        ids: Token ids, [tokens].
        offsets: First character and character after the last of each token in `text`, [tokens, 2].
        text: Text of the tokens.
        sizes: Number of characters of each token in the vocabulary, [tokens]; None if the vocabulary has no prefix of
            pieces that continue a word.
        unknown_id: Id of the token for unknown words; None if there is none.
    """
    starts = offsets[:, 0]
    if sizes is not None:
        continued = sizes != offsets[:, 1] - starts
    else:
        # Behind the text is no space either.
        spaces = np.append(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4") == ord(" "), False)
        continued = (starts > 0) & ~spaces[starts] & ~spaces[starts - 1]
    return np.asarray(continued if unknown_id is None else continued & (ids != unknown_id))


class Entities(NamedTuple):
    """Entities of one text, in its order.

    Attributes:
        labels: Name of each entity's label.
        scores: Probability of each label, FP32 [entities].
        starts: First character of each entity, [entities].
        ends: Character after the last of each entity, [entities].
    """

    labels: list[str]
    scores: Floats
    starts: Integers
    ends: Integers

    def shifted(self, characters: int) -> Entities:
        """Return the entities as places in a text with more characters at its begin."""
        if not characters:
            return self
        return self._replace(starts=self.starts + characters, ends=self.ends + characters)

    def dicts(self, text: str) -> list[dict[str, Any]]:
        """Return the entities of `text` for JSON: label, score, start, end, text."""
        columns = zip(self.labels, self.scores.tolist(), self.starts.tolist(), self.ends.tolist(), strict=True)
        return [
            {"label": label, "score": score, "start": start, "end": end, "text": text[start:end]}
            for label, score, start, end in columns
        ]

    def json(self, text: str) -> str:
        """Return the entities of `text` as a JSON list of label, score, start, end, text."""
        return json.dumps(self.dicts(text), ensure_ascii=False)


def find_entities(
    logits: Floats,
    offsets: Integers,
    continues: Flags,
    scheme: LabelScheme,
    aggregation: Aggregation,
) -> Entities:
    """Return the entities of one text, equal to those of transformers' `TokenClassificationPipeline`.

    Args:
        logits: FP32 [tokens, labels] of the text's own tokens, without those that the tokenizer's template added.
        offsets: First character and character after the last of each token, [tokens, 2].
        continues: Whether each token continues the word of the token before it, [tokens]; see `continued_words`.
        scheme: Scheme of the labels.
        aggregation: `none`: every token is an entity of its own label. `simple`: consecutive tokens of a tag are one.
            `first`, `average`, `max`: the same with one label for each word, that of its first token, of the mean of
            its tokens' probabilities, or of its most certain token.
    """
    starts, ends = offsets[:, 0], offsets[:, 1]
    if not len(logits):
        return Entities([], np.zeros(0, np.float32), starts, ends)
    scores = softmax(logits, dtype=np.float32)
    if aggregation in ("first", "average", "max"):
        firsts = np.flatnonzero(~continues)
        if not len(firsts) or firsts[0] != 0:
            firsts = np.concatenate([[0], firsts])
        scores = _word_scores(scores, firsts, aggregation)
        starts, ends = starts[firsts], ends[np.append(firsts[1:], len(ends)) - 1]
    labels = scores.argmax(-1)
    best = scores[np.arange(len(labels)), labels]
    if aggregation == "none":
        kept = np.flatnonzero(~scheme.outside[labels])
        return Entities([scheme.names[label] for label in labels[kept]], best[kept], starts[kept], ends[kept])
    tags = scheme.tags[labels]
    first = np.ones(len(labels), np.bool_)
    first[1:] = (tags[1:] != tags[:-1]) | scheme.begins[labels[1:]] | scheme.ends[labels[:-1]]
    firsts = np.flatnonzero(first)
    behind = np.append(firsts[1:], len(labels))
    means = np.asarray(np.add.reduceat(best, firsts) / (behind - firsts).astype(np.float32), np.float32)
    kept = np.flatnonzero(~scheme.outside_groups[labels[firsts]])
    names = [scheme.groups[label] for label in labels[firsts[kept]]]
    return Entities(names, means[kept], starts[firsts[kept]], ends[behind[kept] - 1])


def _word_scores(scores: Floats, firsts: Integers, aggregation: Aggregation) -> Floats:
    """Return the probabilities that words get, [words, labels].

    Args:
        scores: Probabilities of tokens, [tokens, labels].
        firsts: Index of the first token of each word, [words].
        aggregation: `first`, `average` or `max`.
    """
    if aggregation == "first":
        return scores[firsts]
    counts = np.diff(np.append(firsts, len(scores)))
    if aggregation == "average":
        means: Floats = np.add.reduceat(scores, firsts, axis=0) / counts.astype(np.float32)[:, None]
        return means
    # Of each word the first token whose best score is the word's best.
    best = scores.max(-1)
    words = np.repeat(np.arange(len(firsts)), counts)
    tops = np.flatnonzero(best == np.maximum.reduceat(best, firsts)[words])
    return np.asarray(scores[tops[np.unique(words[tops], return_index=True)[1]]])
