"""The best spans of a context as answers to a question, as in transformers' pipeline of version 4, its last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# What the pipeline sets logits to that no answer may begin or end at.
_NEVER = np.float32(-10000.0)


class Window(NamedTuple):
    """Scores of the tokens of one window over a context.

    Attributes:
        begin: Logit of each token as the first of the answer, FP32 [length].
        end: Logit of each token as the last of the answer, FP32 [length].
        context: Whether each token belongs to the context, [length].
        starts: First character of the word of each token in the context, [length]; see `word_bounds`.
        ends: Character after the last of the word of each token in the context, [length].
    """

    begin: Floats
    end: Floats
    context: Flags
    starts: Integers
    ends: Integers


class Answer(NamedTuple):
    """An answer.

    Attributes:
        text: Characters `start` to `end` of the context; empty if the context has no answer.
        score: Sum of the probabilities of the spans of this text.
        start: First character.
        end: Character after the last.
    """

    text: str
    score: float
    start: int
    end: int


def best_answers(
    windows: Sequence[Window], context: str, *, top_k: int = 1, max_tokens: int = 15, impossible: bool = False
) -> list[Answer]:
    """Return the most likely answers, equal to those of transformers' `QuestionAnsweringPipeline`.

    Spans of the same text, in any case and place, are one answer. Spans of probability 0, which the pipeline may add
    if the context has fewer than `top_k` others, are left out.

    Args:
        windows: Windows over the context, in its order.
        context: The context.
        top_k: Maximum number of answers.
        max_tokens: Maximum number of tokens of an answer.
        impossible: Whether that there is no answer, an empty text, is an answer too.

    Returns:
        Answers by descending score; none if no token of the context can be one.
    """
    texts: dict[str, Answer] = {}
    least = 1e6
    for window in windows:
        begin, end = _probabilities(window.begin, window.context), _probabilities(window.end, window.context)
        if impossible:
            least = min(least, float(begin[0] * end[0]))
        # The pipeline keeps more spans than answers, since several may be within the same words.
        for first, last, score in zip(*_spans(begin, end, window.context, 2 * top_k + 10, max_tokens), strict=True):
            start, stop = int(window.starts[first]), int(window.ends[last])
            text = context[start:stop]
            before = texts.get(text.lower())
            texts[text.lower()] = (
                Answer(text, score, start, stop) if before is None else before._replace(score=before.score + score)
            )
    answers = list(texts.values())
    if impossible:
        answers.append(Answer("", least, 0, 0))
    return sorted(answers, key=lambda answer: answer.score, reverse=True)[:top_k]


def _probabilities(logits: Floats, context: Flags) -> Floats:
    """Softmax over the tokens of the context and the first one, which stands for no answer."""
    allowed = context.copy()
    allowed[0] = True
    kept = np.where(allowed, logits, _NEVER)
    powers = np.exp(kept - kept.max())
    probabilities: Floats = powers / powers.sum()
    return probabilities


def _spans(
    begin: Floats, end: Floats, context: Flags, count: int, max_tokens: int
) -> tuple[list[int], list[int], list[float]]:
    """Return the first and last tokens and probabilities of the `count` most likely spans, most likely first."""
    behind = np.concatenate([np.where(context, end, 0), np.zeros(max_tokens - 1, end.dtype)])
    ends = np.lib.stride_tricks.sliding_window_view(behind, max_tokens)  # [length, max_tokens]
    scores = (np.where(context, begin, 0)[:, None] * ends).ravel()
    best = np.argpartition(-scores, count)[:count] if count < len(scores) else np.arange(len(scores))
    best = best[scores[best] > 0]
    best = best[np.argsort(-scores[best], kind="stable")]
    firsts = best // max_tokens
    return firsts.tolist(), (firsts + best % max_tokens).tolist(), scores[best].tolist()


def word_bounds(offsets: Integers, words: Integers) -> tuple[Integers, Integers]:
    """Return the first character, and the one after the last, of the word of each token; each [length].

    Args:
        offsets: First character and character after the last of each token, [length, 2].
        words: Index of each token's word, below 0 for tokens of no word, which are words of their own; [length].
    """
    length = len(words)
    first = np.ones(length, np.bool_)
    first[1:] = (words[1:] != words[:-1]) | (words[1:] < 0)
    firsts = np.flatnonzero(first)
    counts = np.diff(np.append(firsts, length))
    return np.repeat(offsets[firsts, 0], counts), np.repeat(offsets[firsts + counts - 1, 1], counts)
